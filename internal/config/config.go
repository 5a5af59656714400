package config

import (
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// Notify says how the daemon learns of commits.
type Notify string

// The ways to learn of commits.
const (
	NotifyAuto Notify = "auto" // LISTEN if it is found to work, else polling
	NotifyOn   Notify = "on"   // LISTEN, and a LISTEN that does not work is an error
	NotifyOff  Notify = "off"  // polling only: for poolers that swallow LISTEN and for prepared transactions
)

// SyncMode says what a sync does about drift in a target.
type SyncMode string

// The modes of a sync.
const (
	SyncRepair SyncMode = "repair" // drift is put right
	SyncReport SyncMode = "report" // drift is shown and left alone
)

// LogFormat is the form of log lines.
type LogFormat string

// The forms of log lines.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// LogLevel is the least severe level that is logged; it is a valid text for slog.Level.UnmarshalText.
type LogLevel string

// The levels of log lines.
const (
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
	LogWarn  LogLevel = "warn"
	LogError LogLevel = "error"
)

// Config is the effective configuration: every default filled in, every value within its bounds.
// Defaults and bounds of each field are in knobs.go and docs/configuration.md.
type Config struct {
	// File is the config file that was read; "" when there was none.
	File string
	// DatabaseURL may lead through a pooler. It is zero when nobody gave one: see ValidateDatabase.
	DatabaseURL URL
	// DirectURL leads to the server itself, for LISTEN, leases and migrations. Default: DatabaseURL.
	DirectURL URL
	// Listen is the host:port of probes, metrics and status page; "" means off.
	Listen string
	// ListenNames are further names, separated by commas, by which both may be asked.
	ListenNames string
	// PprofListen is the host:port of the profiler; "" means off.
	PprofListen string
	Notify      Notify
	// PollInterval is the pause between two looks at the outbox while LISTEN cannot be used or notify is off.
	PollInterval time.Duration
	// ShutdownTimeout is how long a stop may drain before calls are cancelled.
	ShutdownTimeout time.Duration
	// MemoryLimit is how many bytes of objects the process holds in memory; see package budget.
	MemoryLimit int64
	Log         Log
	Retention   Retention
	Streams     Streams
	Agent       Agent
	// Targets are in the order of the config; names are unique.
	Targets []Target

	agent   bool              // the config is an agent's, and has its keys
	origins map[string]Origin // by field path; a path without entry has its default
}

// Log says what is logged and how.
type Log struct {
	Level  LogLevel
	Format LogFormat
}

// Retention caps the outbox while a consumer is away.
type Retention struct {
	MaxAge  time.Duration
	MaxRows int64
}

// Streams configures how streams are served over HTTP.
type Streams struct {
	// Listen is a host:port; "" means off. Beyond the loopback interface it needs Tokens and TLS.
	Listen string
	// TLSCertFile and TLSKeyFile are PEM files; both or none.
	TLSCertFile, TLSKeyFile string
	// Tokens are who may read; none: everyone who can connect.
	Tokens []Token
}

// Target is a place that objects are applied to.
type Target struct {
	Name   string
	Driver string
	// Options are the driver's: strings, bools, int64, float64, []any, map[string]any. Never nil; null entries are left out.
	Options     driver.Options
	Concurrency int           // calls at the same time
	Timeout     time.Duration // of one call
	// SyncInterval is the time between two syncs; 0 means that none is started by the clock.
	SyncInterval time.Duration
	SyncMode     SyncMode
	Rate         float64 // calls per second; 0 means no limit
	Backoff      Backoff
	Guard        Guard
}

// Backoff bounds the pause before an object that failed is tried again.
type Backoff struct {
	Min time.Duration
	Max time.Duration
}

// String returns the target's name: options may hold secrets, so that a careless %v shows none.
func (t Target) String() string { return t.Name }

// GoString returns the target's name, for %#v.
func (t Target) GoString() string { return "config.Target(" + t.Name + ")" }

// Target returns the target with this name.
func (c *Config) Target(name string) (Target, bool) {
	for _, t := range c.Targets {
		if t.Name == name {
			return t, true
		}
	}
	return Target{}, false
}

// Origin says where the value at a field path, such as "log.level" or "targets[0].options.dir", came from.
func (c *Config) Origin(path string) Origin { return c.origins[path] }
