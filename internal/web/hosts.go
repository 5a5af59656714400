package web

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
)

// Hosts has the names by which the HTTP servers may be asked. Without it, a page in a browser could have a name of its own resolve to
// this host (DNS rebinding) and read what is served as if it were its own. An address, localhost, and a name without a dot do not
// allow that.
type Hosts map[string]bool

// NewHosts allows the name that is listened on, that of this machine, and those of the config.
func NewHosts(listen, names string) Hosts {
	allowed := Hosts{}
	if host, _, err := net.SplitHostPort(listen); err == nil {
		allowed[canonical(host)] = true
	}
	if host, err := os.Hostname(); err == nil {
		allowed[canonical(host)] = true
	}
	for name := range strings.SplitSeq(names, ",") {
		allowed[canonical(strings.TrimSpace(name))] = true
	}
	delete(allowed, "")
	return allowed
}

func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// allows reports whether a Host header, with or without a port, is a name of ours.
func (h Hosts) allows(header string) bool {
	host := header
	if name, _, err := net.SplitHostPort(header); err == nil {
		host = name
	}
	host = canonical(strings.Trim(host, "[]"))
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") || h[host]
}

// Only serves those that ask by a name of ours, and no page of another site.
func (h Hosts) Only(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.allows(r.Host) {
			http.Error(w, fmt.Sprintf("the name %q is not known here; listen_names in the config allows more", r.Host), http.StatusMisdirectedRequest)
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" {
			if from, err := url.Parse(origin); err != nil || !strings.EqualFold(from.Host, r.Host) {
				http.Error(w, "pages of other sites are not served", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
