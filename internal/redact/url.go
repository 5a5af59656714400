package redact

import (
	"regexp"
	"slices"
	"strings"
)

// Redacted stands where a secret was.
const Redacted = "REDACTED"

// host is a name in letters of any script, or an address, and perhaps a port.
const host = `(?:[\pL\pN._%-]*|\[[0-9A-Fa-f:.%]*\])(?::[0-9]*)?`

// shownURL is a URL of which every part can be told apart with certainty. Whatever is ambiguous, such as a
// password with "/" or "@" that was not percent-encoded, does not match. Then nothing of it is shown, and check rejects it.
var shownURL = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*)://` + // scheme
	`(?:([^:@/?#\s]*)(:[^@/?#\s]*)?@)?` + // user and password
	`(` + host + `(?:,` + host + `)*)` +
	`(/[^?#@\s]*)?(\?[^#@\s]*)?$`) // path and query

// shownSettings are the settings of a database URL whose values are no secrets. One that is not listed may be
// a piece of a password that was cut in the wrong place, so it hides everything around it.
var shownSettings = strings.Fields(`application_name channel_binding client_encoding connect_timeout database
	datestyle dbname default_query_exec_mode default_transaction_read_only description_cache_capacity
	fallback_application_name gssencmode host hostaddr idle_in_transaction_session_timeout
	keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname krbspn lock_timeout
	max_protocol_version min_protocol_version passfile pool_health_check_period
	pool_max_conn_idle_time pool_max_conn_lifetime pool_max_conn_lifetime_jitter pool_max_conns
	pool_min_conns pool_min_idle_conns port require_auth role search_path service servicefile
	ssl_max_protocol_version ssl_min_protocol_version sslcert sslcertmode sslcrl sslcrldir sslinline
	sslmode sslnegotiation sslrootcert sslsni statement_cache_capacity statement_timeout
	target_session_attrs tcp_user_timeout timezone tz user`)

// secretSettings are known settings whose values are never shown.
var secretSettings = strings.Fields("password sslpassword options scram_client_key scram_server_key oauth_client_secret")

// A private key can be given by name or, with sslinline, in full.
const keySetting, inlineSetting = "sslkey", "sslinline"

// URL returns a URL or a keyword/value connection string in a form that may be logged. It is meant for
// any text: what it does not fully understand it hides. Shown are scheme, user of a database, hosts, path and
// harmless settings; hidden are passwords, users of anything but a database (they may be tokens) and all other
// settings. "" stays "".
func URL(raw string) string {
	if raw == "" {
		return ""
	}
	if isURL(raw) {
		return redactURL(raw)
	}
	return redactSettings(raw)
}

// isURL tells a URL from key=value pairs, of which a value may be a URL.
func isURL(raw string) bool {
	scheme, _, found := strings.Cut(raw, "://")
	return found && !strings.ContainsAny(scheme, "= '")
}

func isDatabaseScheme(scheme string) bool { return scheme == "postgres" || scheme == "postgresql" }

func redactURL(raw string) string {
	m := shownURL.FindStringSubmatch(raw)
	if m == nil {
		for _, scheme := range []string{"postgres", "postgresql", "http", "https"} {
			if strings.HasPrefix(raw, scheme+"://") {
				return scheme + "://" + Redacted
			}
		}
		return Redacted
	}
	scheme, user, password, hosts, path, query := m[1], m[2], m[3], m[4], m[5], m[6]
	login := user
	if password != "" {
		login += ":" + Redacted
	}
	// Web services take tokens in place of the user, with or without a password beside it.
	if login != "" && !isDatabaseScheme(scheme) {
		login = Redacted
	}
	if login != "" {
		login += "@"
	}
	return scheme + "://" + login + hosts + path + redactQuery(scheme, query)
}

// settingShown says of one setting whether it is known, and whether its value may be shown.
func settingShown(raw, name string) (known, shown bool) {
	switch {
	case slices.Contains(secretSettings, name):
		return true, false
	case name == keySetting:
		return true, !strings.Contains(raw, inlineSetting)
	default:
		known = slices.Contains(shownSettings, name)
		return known, known
	}
}

func redactQuery(scheme, query string) string {
	if len(query) <= 1 {
		return query
	}
	if !isDatabaseScheme(scheme) {
		return "?" + Redacted
	}
	params := strings.Split(query[1:], "&")
	for i, param := range params {
		name, _, _ := strings.Cut(param, "=")
		known, shown := settingShown(query, name)
		if !known {
			return "?" + Redacted
		}
		if !shown {
			params[i] = name + "=" + Redacted
		}
	}
	return "?" + strings.Join(params, "&")
}

// setting is one keyword and its value, as libpq reads a connection string.
var setting = regexp.MustCompile(`^\s*([A-Za-z0-9_.]+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?:\s+|$)`)

// splitSettings returns the names and values of key=value pairs, values with their quotes, or false.
func splitSettings(raw string) (pairs [][2]string, ok bool) {
	for rest := raw; strings.TrimSpace(rest) != ""; {
		m := setting.FindStringSubmatch(rest)
		if m == nil {
			return nil, false
		}
		pairs = append(pairs, [2]string{m[1], m[2]})
		rest = rest[len(m[0]):]
	}
	return pairs, true
}

func redactSettings(raw string) string {
	pairs, ok := splitSettings(raw)
	if !ok {
		return Redacted
	}
	shown := make([]string, len(pairs))
	for i, pair := range pairs {
		name, value := pair[0], pair[1]
		known, harmless := settingShown(raw, name)
		if !known {
			return Redacted
		}
		if !harmless {
			value = Redacted
		}
		shown[i] = name + "=" + value
	}
	return strings.Join(shown, " ")
}
