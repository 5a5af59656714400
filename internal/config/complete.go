package config

import (
	"cmp"
	"fmt"
	"net"
	"strings"
)

// complete fills what depends on other values, and checks what concerns more than one.
func (l *loader) complete() {
	if l.cfg.DirectURL.IsZero() {
		l.cfg.DirectURL = l.cfg.DatabaseURL
	}
	if l.opts.Agent {
		l.completeAgent()
	} else {
		l.checkAddresses()
		l.checkStreams()
	}
	for i := range l.cfg.Targets {
		if !l.broken[i] {
			l.checkTarget(i)
		}
	}
}

func (l *loader) checkAddresses() {
	listen, pprof, streams := l.cfg.Listen, l.cfg.PprofListen, l.cfg.Streams.Listen
	if sameAddress(pprof, listen) {
		l.problems.add(l.cfg.origins["pprof_listen"], "pprof_listen", "is the address of listen; give the profiler one of its own, or %q", off)
	}
	if sameAddress(streams, listen) || sameAddress(streams, pprof) {
		l.problems.add(l.cfg.origins["streams.listen"], "streams.listen", "is the address of listen or pprof_listen; give streams one of their own, or %q", off)
	}
}

// checkStreams refuses to serve specs to everyone.
func (l *loader) checkStreams() {
	s := l.cfg.Streams
	if (s.TLSCertFile == "") != (s.TLSKeyFile == "") {
		l.problems.add(cmp.Or(l.cfg.origins["streams.tls_cert_file"], l.cfg.origins["streams.tls_key_file"]), "streams", "needs both tls_cert_file and tls_key_file, or neither")
	}
	host, _, _ := net.SplitHostPort(s.Listen)
	if s.Listen != "" && !isLoopback(host) && (len(s.Tokens) == 0 || s.TLSCertFile == "") {
		l.problems.add(l.cfg.origins["streams.listen"], "streams.listen", "%q is beyond the loopback interface, where streams need tokens, tls_cert_file and tls_key_file: "+
			"else everyone who can connect reads every spec", s.Listen)
	}
	l.checkTokenTargets()
}

// sameAddress reports whether two addresses cannot both be listened on.
func sameAddress(a, b string) bool {
	_, port, _ := net.SplitHostPort(a)
	return a == b && a != "" && port != "0"
}

func (l *loader) checkTarget(i int) {
	t := &l.cfg.Targets[i]
	entry := l.cfg.origins[fmt.Sprintf("targets[%d]", i)]
	if t.Name == "" && !l.reported(targetPath(i, "name")) {
		l.problems.add(entry, targetPath(i, "name"), "is missing: give every target a name")
	}
	l.checkDuplicate(i)
	l.checkDriver(i, entry)
	if t.Backoff.Min > t.Backoff.Max {
		path := targetPath(i, "backoff.min")
		l.problems.add(l.cfg.origins[path], path, "must not be longer than backoff.max, %s, but is %s",
			FormatDuration(t.Backoff.Max), FormatDuration(t.Backoff.Min))
	}
}

func (l *loader) checkDuplicate(i int) {
	name := l.cfg.Targets[i].Name
	if name == "" {
		return
	}
	for j := range i {
		if l.cfg.Targets[j].Name == name {
			path := targetPath(i, "name")
			l.problems.add(l.cfg.origins[path], path, "%q is already the name of targets[%d] (%s)",
				name, j, l.cfg.origins[targetPath(j, "name")])
			return
		}
	}
}

func (l *loader) checkDriver(i int, entry Origin) {
	name, path := l.cfg.Targets[i].Driver, targetPath(i, "driver")
	known := l.opts.Registry.Names()
	if name == "" {
		l.closed[i] = true
		if !l.reported(path) {
			l.problems.add(entry, path, "is missing: %s", oneOfDrivers(known))
		}
		return
	}
	if _, ok := l.opts.Registry.Lookup(name); ok || l.opts.Registry == nil {
		return
	}
	l.closed[i] = true
	if l.opts.Agent && name == streamDriver {
		l.problems.add(l.cfg.origins[path], path, "an agent follows a stream, and does not make one: %s", oneOfDrivers(known))
		return
	}
	text := fmt.Sprintf("unknown driver %q; %s", name, oneOfDrivers(known))
	if near := suggest(name, known); near != "" && len(name) <= longestSuggested {
		text = fmt.Sprintf("unknown driver %q; did you mean %q? The drivers are %s", name, near, strings.Join(known, ", "))
	}
	l.problems.add(l.cfg.origins[path], path, "%s", text)
}

func oneOfDrivers(known []string) string {
	if len(known) == 0 {
		return "name the driver"
	}
	return "choose one of " + strings.Join(known, ", ")
}

// reported says whether a path has a problem already: what is wrong is not missing too.
func (l *loader) reported(path string) bool {
	for _, p := range l.problems {
		if p.Path == path {
			return true
		}
	}
	return false
}
