// Package database opens connections to PostgreSQL the way the product needs them, and says what an
// error of PostgreSQL means. Every session has pinned settings: text forms of values must not depend
// on a server's or role's defaults, and a frozen process must lose its session within seconds.
//
// All connections of a process belong to its Fleet, which ends those that do not answer any more.
package database
