package kubernetes

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
	"github.com/pgreconciler/reconciler/internal/redact"
)

const (
	namespaceDefault  = "default"
	userAgent         = "reconciler"
	retryAfterDefault = time.Second
	// refusalBytesMost is how much of an answer that is no Status stands in an error.
	refusalBytesMost = 300
)

// client-go writes to standard error, in a format of its own, what it returns as errors, too.
func init() { klog.SetLogger(logr.Discard()) }

// readConnection returns how to reach the cluster, and the namespace that the kubeconfig's context names.
func readConnection(r *options.Reader) (*rest.Config, string) {
	path, name := r.String("kubeconfig", ""), r.String("context", "")
	if path == "" {
		if name != "" {
			r.Problemf("context", "needs options.kubeconfig")
		}
		config, err := rest.InClusterConfig()
		if err != nil {
			r.Problemf("kubeconfig", "is required outside of a cluster: %s", err)
		}
		return config, namespaceDefault
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{CurrentContext: name})
	if err := checkURLs(loader); err != nil {
		r.Problemf("kubeconfig", "%s cannot be used: %s", path, err)
		return nil, namespaceDefault
	}
	config, err := loader.ClientConfig()
	if err != nil {
		r.Problemf("kubeconfig", "%s cannot be used: %s", path, err)
		return nil, namespaceDefault
	}
	namespace, _, err := loader.Namespace()
	if err != nil || namespace == "" {
		namespace = namespaceDefault
	}
	return config, namespace
}

// checkURLs checks the URLs that may hold a password, before client-go quotes them in an error.
func checkURLs(loader clientcmd.ClientConfig) error {
	raw, err := loader.RawConfig()
	if err != nil {
		return nil //nolint:nilerr // ClientConfig returns it, too
	}
	for name, cluster := range raw.Clusters {
		if err := redact.CheckProxy(cluster.Server); cluster.Server != "" && err != nil {
			return fmt.Errorf("the server of cluster %q %w", name, err)
		}
		if err := redact.CheckProxy(cluster.ProxyURL); cluster.ProxyURL != "" && err != nil {
			return fmt.Errorf("the proxy-url of cluster %q %w", name, err)
		}
	}
	return nil
}

// prepared returns the configuration for the driver's clients: rate and retries are the owner's, not client-go's.
func prepared(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.UserAgent = userAgent
	config.WarningHandler = rest.NoWarnings{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return frank{next} })
	return config
}

// secretsOf returns the secrets of a configuration, with what stands for each in texts.
func secretsOf(config *rest.Config) driver.Scrubber {
	return driver.NewScrubber(map[string]string{config.BearerToken: "token", config.Password: "password"})
}

// frank is a transport that returns at once what client-go would wait and retry for.
type frank struct{ next http.RoundTripper }

// busyError is an answer with status 429: the server asks for fewer requests.
type busyError struct {
	after time.Duration
	text  string
}

func (e *busyError) Error() string { return strings.TrimSuffix("429 Too Many Requests: "+e.text, ": ") }

// silentError is a request that got no answer. It hides the cause: client-go would send the request again, up to ten times with a second
// between them, where it is a lost connection.
type silentError struct{ text string }

func (e *silentError) Error() string { return e.text }

func (f frank) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := f.next.RoundTrip(req)
	if err != nil && req.Context().Err() == nil {
		err = &silentError{text: err.Error()}
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // of a transport
	}
	after := resp.Header.Get("Retry-After")
	resp.Header.Del("Retry-After")
	if resp.StatusCode != http.StatusTooManyRequests {
		return resp, nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, refusalBytesMost+1))
	_ = resp.Body.Close()
	return nil, &busyError{after: parseSeconds(after), text: driver.Snippet(bytes.TrimSpace(text), refusalBytesMost)}
}

// parseSeconds reads a header Retry-After, which API servers give in seconds.
func parseSeconds(text string) time.Duration {
	seconds, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return retryAfterDefault
	}
	return time.Duration(seconds) * time.Second
}
