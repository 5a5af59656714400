// Package redact shows URLs and connection strings without the secrets in them, and rejects those whose secrets it cannot
// tell apart from the rest. Everything that reads a URL from a config, the environment or a file checks it here first:
// a parser that cuts a password in two takes one half for a host, and looks it up in DNS.
package redact
