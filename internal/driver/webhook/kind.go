package webhook

import (
	"crypto/x509"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
	"github.com/pgreconciler/reconciler/internal/redact"
)

const (
	connectTimeoutDefault = 5 * time.Second
	connectTimeoutMin     = 100 * time.Millisecond
	connectTimeoutMax     = time.Minute
)

// Kind is the driver `webhook`.
func Kind() driver.Kind { return driver.Kind{Name: "webhook", Open: open} }

func open(target string, opts driver.Options, env driver.Env) (driver.Driver, error) {
	r := options.New(opts)
	labels := map[string]string{}
	h := &hook{
		address:  readAddress(r, env.Getenv, labels),
		secrets:  readSecrets(r, env.Getenv, labels),
		applying: readMethod(r, "apply_method", http.MethodPut, http.MethodPost, http.MethodPatch),
		deleting: readMethod(r, "delete_method", http.MethodDelete, http.MethodPost, http.MethodPut, http.MethodPatch),
		headers:  readHeaders(r, env.Getenv, labels),
		now:      time.Now,
	}
	h.place = h.address.place(target)
	health := readHealthAddress(r, env.Getenv, labels)
	roots := readRoots(r)
	connect := r.Duration("connect_timeout", connectTimeoutDefault, connectTimeoutMin, connectTimeoutMax)
	if err := r.Err(); err != nil {
		return nil, err
	}
	h.client = newClient(roots, connect)
	h.scrubber = driver.NewScrubber(labels)
	if health.path == "" {
		return h, nil
	}
	return struct {
		*hook
		*healthEndpoint
	}{h, &healthEndpoint{of: h, at: health}}, nil
}

func readAddress(r *options.Reader, getenv func(string) string, labels map[string]string) address {
	given, a := readURL(r, "url", getenv, labels, parseAddress)
	if !given {
		r.Problemf("url", "is required (or options.url_env, if it is a secret)")
	}
	return a
}

func readHealthAddress(r *options.Reader, getenv func(string) string, labels map[string]string) address {
	_, a := readURL(r, "health_url", getenv, labels, parseHealthAddress)
	return a
}

// readURL reads an option with a URL, or a URL that is a secret as a whole. What of a URL may be secret gets a label: the
// endpoint may repeat it.
func readURL(r *options.Reader, name string, getenv func(string) string, labels map[string]string, parse func(string) (address, error)) (given bool, a address) {
	text, option := r.String(name, ""), name
	secret := r.Secret(name, getenv)
	sources := 0
	for _, source := range []string{name, name + "_env", name + "_file"} {
		if r.Has(source) {
			sources++
			option = source
		}
	}
	switch {
	case sources == 0:
		return false, address{}
	case r.Has(name) && sources > 1:
		r.Problemf(option, "cannot stand beside options.%s: give one of the two", name)
		return true, address{}
	case secret.Value != "":
		text = secret.Value
	case text == "":
		return true, address{} // a problem already
	}
	err := redact.CheckExpanded(text)
	if err == nil {
		a, err = parse(text)
	}
	if err != nil {
		r.Problemf(option, "%s", err)
		return true, address{}
	}
	a.given, a.secret = option, secret.Value != ""
	for value := range a.secrets(a.secret) {
		labels[value] = "options." + option
	}
	return true, a
}

func readSecrets(r *options.Reader, getenv func(string) string, labels map[string]string) [][]byte {
	secret := r.Secret("secret", getenv)
	var keys [][]byte
	for text := range strings.FieldsSeq(secret.Value) {
		labels[text] = secret.Label
		encoded, ok := strings.CutPrefix(text, secretPrefix)
		if !ok {
			keys = append(keys, []byte(text))
			continue
		}
		labels[encoded] = secret.Label
		key, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(key) == 0 {
			name := "secret_env"
			if r.Has("secret_file") {
				name = "secret_file"
			}
			r.Problemf(name, "what follows %s in the secret must be base64", secretPrefix)
			continue
		}
		keys = append(keys, key)
	}
	return keys
}

func readMethod(r *options.Reader, name, fallback string, others ...string) string {
	method := r.String(name, fallback)
	if allowed := append([]string{fallback}, others...); !slices.Contains(allowed, method) {
		r.Problemf(name, "must be one of %s", strings.Join(allowed, ", "))
	}
	return method
}

// ours are headers that a request gets from this driver or from the protocol.
var ours = []string{
	"Connection", "Content-Length", "Content-Type", "Expect", "Host", "Idempotency-Key", "Keep-Alive", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", headerID, headerSignature, headerTimestamp,
}

// credentials are headers whose values have no place in a config file.
var credentials = []string{"Authorization", "Cookie", "Proxy-Authorization"}

func readHeaders(r *options.Reader, getenv func(string) string, labels map[string]string) http.Header {
	headers := http.Header{}
	set := func(path, name, value string) {
		switch canonical := http.CanonicalHeaderKey(name); {
		case !isToken(name):
			r.Problemf(path, "%q cannot be the name of a header", name)
		case slices.Contains(ours, canonical):
			r.Problemf(path, "the header %s is set by the driver", canonical)
		case strings.ContainsFunc(value, isControl):
			r.Problemf(path, "the value of the header %s holds a control character", canonical)
		case headers.Get(name) != "":
			r.Problemf(path, "the header %s is given twice", canonical)
		default:
			headers.Set(name, value)
		}
	}
	plain := r.StringMap("headers")
	for _, name := range slices.Sorted(maps.Keys(plain)) {
		if slices.Contains(credentials, http.CanonicalHeaderKey(name)) {
			r.Problemf("headers", "%s is a credential: name an environment variable for it in options.headers_env", name)
			continue
		}
		set("headers", name, plain[name])
	}
	secret := r.SecretMap("headers_env", getenv)
	for _, name := range slices.Sorted(maps.Keys(secret)) {
		if secret[name].Value == "" {
			continue // a problem already
		}
		set("headers_env", name, secret[name].Value)
		labels[secret[name].Value] = secret[name].Label
		// "Bearer x": an endpoint may repeat x alone.
		if _, token, ok := strings.Cut(secret[name].Value, " "); ok {
			labels[token] = secret[name].Label
		}
	}
	return headers
}

func readRoots(r *options.Reader) *x509.CertPool {
	path := r.String("ca_file", "")
	if path == "" {
		return nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		r.Problemf("ca_file", "cannot be read: %s", err)
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		r.Problemf("ca_file", "%s holds no certificate in PEM form", path)
	}
	return pool
}

func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// basicAuth is what a server sees of a URL's user and password.
func basicAuth(user *url.Userinfo) string {
	password, _ := user.Password()
	return base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
}
