// Package web serves HTTP on addresses of the config: it binds them before anything starts, bounds requests and connections, and refuses
// requests by names that are not known and from pages of other sites. It knows nothing of what is served.
package web
