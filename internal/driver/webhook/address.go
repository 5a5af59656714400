package webhook

import (
	"errors"
	"fmt"
	"iter"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/redact"
)

// address is where requests go: a URL in which {target}, {resource} and {key} stand for the object's names.
type address struct {
	path   string // everything before the query, with placeholders
	query  string // with its question mark, or empty
	origin string // scheme and host: what errors may show
	option string // the option to set another one with
	parsed *url.URL

	given  string // the option that it was given by
	secret bool   // as a whole
}

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// parseAddress reads a URL. One without placeholders gets the resource and the key at the end of its path. Its
// errors do not repeat the URL, which may hold a password.
func parseAddress(text string) (address, error) {
	for _, found := range placeholder.FindAllString(text, -1) {
		if found != "{target}" && found != "{resource}" && found != "{key}" {
			return address{}, errors.New("has an unknown placeholder; known are {target}, {resource} and {key}")
		}
	}
	path, query, _ := strings.Cut(text, "?")
	if query != "" {
		query = "?" + query
	}
	if !placeholder.MatchString(text) {
		path = strings.TrimRight(path, "/") + "/{resource}/{key}"
	}
	if !strings.Contains(path+query, "{key}") {
		return address{}, errors.New("has placeholders but not {key}: all objects would have one URL")
	}
	// Not a letter of it is a placeholder's, so what is wrong is wrong for every object.
	sample, err := parseURL(placeholder.ReplaceAllString(path+query, "x"))
	if err != nil {
		return address{}, err
	}
	rest, ok := strings.CutPrefix(path, authority(path))
	if !ok || placeholder.MatchString(authority(path)) {
		return address{}, errors.New("may have placeholders in its path and query only")
	}
	if strings.ContainsAny(placeholder.ReplaceAllString(rest+query, ""), "{}") {
		return address{}, errors.New("has a brace that belongs to no placeholder")
	}
	return address{path: path, query: query, origin: sample.Scheme + "://" + sample.Host, option: "url", parsed: sample}, nil
}

// parseHealthAddress reads the URL that is asked about the target as a whole.
func parseHealthAddress(text string) (address, error) {
	if strings.ContainsAny(text, "{}") {
		return address{}, errors.New("must not have placeholders: it stands for the whole target")
	}
	parsed, err := parseURL(text)
	if err != nil {
		return address{}, err
	}
	return address{path: text, origin: parsed.Scheme + "://" + parsed.Host, option: "health_url", parsed: parsed}, nil
}

func parseURL(text string) (*url.URL, error) {
	scheme, _, _ := strings.Cut(strings.ToLower(text), "://")
	switch {
	case scheme != "http" && scheme != "https":
		return nil, errors.New("must begin with https:// or http://")
	case strings.Contains(text, "#") && !strings.Contains(text, "@"):
		return nil, errors.New("must not have a fragment (#...)")
	}
	if err := redact.CheckWeb(text); err != nil {
		return nil, err
	}
	parsed, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("cannot be read as a URL")
	case parsed.Host == "":
		return nil, errors.New("has no host")
	}
	return parsed, nil
}

// authority returns scheme, user and host of a URL.
func authority(text string) string {
	scheme, rest, _ := strings.Cut(text, "://")
	host, _, _ := strings.Cut(rest, "/")
	return scheme + "://" + host
}

// of returns the URL of an object.
func (a address) of(ref driver.Ref) string {
	inPath := strings.NewReplacer("{target}", segment(ref.Target), "{resource}", segment(ref.Resource), "{key}", segment(ref.Key))
	if a.query == "" {
		return inPath.Replace(a.path)
	}
	inQuery := strings.NewReplacer("{target}", url.QueryEscape(ref.Target), "{resource}", url.QueryEscape(ref.Resource),
		"{key}", url.QueryEscape(ref.Key))
	return inPath.Replace(a.path) + inQuery.Replace(a.query)
}

// place returns where the objects of a target are. Two URLs that differ only in how they are written are one place.
func (a address) place(target string) driver.Place {
	if a.parsed == nil {
		return driver.Place{} // a problem already
	}
	own := strings.NewReplacer("{target}", segment(target))
	path, query := own.Replace(strings.TrimPrefix(a.path, authority(a.path))), own.Replace(a.query)
	host := strings.ToLower(a.parsed.Hostname())
	if port := a.parsed.Port(); port != "" && port != map[string]string{"http": "80", "https": "443"}[a.parsed.Scheme] {
		host = net.JoinHostPort(host, port)
	}
	p := driver.Place{
		Option: a.given, Name: a.parsed.Scheme + "://" + host + path, Detail: query, Secret: a.secret,
		Apart: "Give each its own URL, such as one with {target} in it",
	}
	if p.Secret {
		p.Name, p.Detail = a.parsed.Scheme+"://"+host+"/...", path+query
	}
	return p
}

// secrets yields what an answer must not repeat: a password and, if the URL as a whole is one, what follows the host.
func (a address) secrets(whole bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		if user := a.parsed.User; user != nil {
			if password, ok := user.Password(); ok && (!yield(password) || !yield(basicAuth(user))) {
				return
			}
		}
		if !whole {
			return
		}
		for part := range strings.SplitSeq(a.parsed.EscapedPath(), "/") {
			if part != "x" && !yield(part) {
				return
			}
		}
		for _, values := range a.parsed.Query() {
			for _, value := range values {
				if value != "x" && !yield(value) {
					return
				}
			}
		}
	}
}

// segment makes a name one segment of a path: percent-encoded as usual. Servers and proxies decode a path before
// they take it apart, and then a/../b would be another path. So what they could take for structure ('/', '\',
// control characters, a leading '.', and an empty name) is percent-encoded before, and '%' with it: such a name
// arrives as the text "%2E.%2Fb". The body always holds the name as it is.
func segment(name string) string {
	if name == "" {
		return url.PathEscape("%")
	}
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c < ' ' || c == 0x7f || c == '/' || c == '\\' || c == '%' || c == '.' && i == 0 {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return url.PathEscape(b.String())
}
