package config

import "time"

const (
	// A port of its own: exporters for PostgreSQL on the same machine have taken 9187 and its neighbours.
	listenDefault = "127.0.0.1:7433"

	pollIntervalDefault = 200 * time.Millisecond
	pollIntervalMin     = 10 * time.Millisecond
	pollIntervalMax     = time.Minute

	shutdownTimeoutDefault = 20 * time.Second
	shutdownTimeoutMin     = 100 * time.Millisecond
	shutdownTimeoutMax     = 10 * time.Minute

	retentionAgeDefault  = 24 * time.Hour
	retentionAgeMin      = time.Minute
	retentionAgeMax      = 365 * 24 * time.Hour
	retentionRowsDefault = 10_000_000
	retentionRowsMin     = 1_000
	retentionRowsMax     = 10_000_000_000

	// MemoryLimitDefault is that of memory_limit.
	MemoryLimitDefault = 192 << 20
	memoryLimitMin     = 32 << 20
	memoryLimitMax     = 1 << 40

	concurrencyDefault = 8
	concurrencyMax     = 1024

	timeoutDefault = 5 * time.Second
	timeoutMin     = 100 * time.Millisecond
	timeoutMax     = 10 * time.Minute

	syncIntervalDefault = 10 * time.Minute
	syncIntervalMin     = time.Second
	syncIntervalMax     = 7 * 24 * time.Hour

	rateMax = 1_000_000

	backoffMinDefault = 500 * time.Millisecond
	backoffMaxDefault = 5 * time.Minute
	backoffLowest     = 10 * time.Millisecond
	backoffHighest    = 24 * time.Hour

	guardDeletesMax    = 1_000_000_000
	guardWindowDefault = time.Minute
	guardWindowMin     = time.Second
	guardWindowMax     = 24 * time.Hour
)

// required is the default's text of a key that has none.
const required = ""

func globalKnobs() []knob[Config] {
	return []knob[Config]{
		key("database_url", func(c *Config) *URL { return &c.DatabaseURL }, URL{}, databaseURL(),
			"The database whose tables are tracked. `pool_max_conns=N` in a URL lowers the number of connections of each pool that a process opens with it, "+
				"to no less than 2 (see [bounds](guarantees.md#bounds)); with few, a transaction that is left open after a command for some targets delays the others. "+
				"May lead through a pooler. A pooler's sessions keep their own `default_transaction_isolation`, "+
				"`default_transaction_read_only` and `standard_conforming_strings`: these must have PostgreSQL's defaults for the role.").withDefault(required),
		key("direct_url", func(c *Config) *URL { return &c.DirectURL }, URL{}, databaseURL(),
			"The same database without a pooler in between, for LISTEN, leases and migrations.").withDefault("`database_url`"),
		key("listen", func(c *Config) *string { return &c.Listen }, listenDefault, address(),
			"Where probes, metrics and the status page are served."),
		key("listen_names", func(c *Config) *string { return &c.ListenNames }, "", word("names", "separated by commas", checkHostNames),
			"Names by which browsers and scrapers may ask there, beside addresses, `localhost`, names without a dot and the host's own.").withDefault("none"),
		key("pprof_listen", func(c *Config) *string { return &c.PprofListen }, "", address(),
			"Where the profiler is served, apart from everything else."),
		key("notify", func(c *Config) *Notify { return &c.Notify }, NotifyAuto, oneOf(NotifyAuto, NotifyOn, NotifyOff),
			"How commits are noticed: `auto` listens if LISTEN is found to work, `off` only polls."),
		key("poll_interval", func(c *Config) *time.Duration { return &c.PollInterval }, pollIntervalDefault,
			durationIn(pollIntervalMin, pollIntervalMax),
			"Pause between two looks at the outbox while LISTEN cannot be used or `notify` is `off`."),
		key("shutdown_timeout", func(c *Config) *time.Duration { return &c.ShutdownTimeout }, shutdownTimeoutDefault,
			durationIn(shutdownTimeoutMin, shutdownTimeoutMax),
			"How long a stop waits for calls in flight before it cancels them."),
		key("memory_limit", func(c *Config) *int64 { return &c.MemoryLimit }, int64(MemoryLimitDefault),
			sizeIn(memoryLimitMin, memoryLimitMax),
			"Most bytes of objects in memory, of all targets and streams: a third for objects that are read and called for, a third for pages "+
				"that readers of streams have not yet taken, a third for changes kept for all readers. The process needs some 50 MB besides, and "+
				"may grow to twice the limit before garbage is collected. A target may exceed it by one object, so that none waits for another."),
		key("log.level", func(c *Config) *LogLevel { return &c.Log.Level }, LogInfo,
			oneOf(LogDebug, LogInfo, LogWarn, LogError), "The least severe level that is logged."),
		key("log.format", func(c *Config) *LogFormat { return &c.Log.Format }, LogText, oneOf(LogText, LogJSON),
			"The form of log lines."),
		key("retention.max_age", func(c *Config) *time.Duration { return &c.Retention.MaxAge }, retentionAgeDefault,
			durationIn(retentionAgeMin, retentionAgeMax),
			"How long outbox rows wait for a consumer that is away. One that comes back later must sync."),
		key("retention.max_rows", func(c *Config) *int64 { return &c.Retention.MaxRows }, int64(retentionRowsDefault),
			intIn[int64](retentionRowsMin, retentionRowsMax),
			"How many outbox rows wait for a consumer that is away."),
		key("streams.listen", func(c *Config) *string { return &c.Streams.Listen }, "", address(),
			"Where streams are served; see [streams](streams.md). Beyond the loopback interface, `tokens` and TLS are required."),
		key("streams.tls_cert_file", func(c *Config) *string { return &c.Streams.TLSCertFile }, "", word("path", "", func(string) error { return nil }),
			"Certificate chain, PEM; it is read again every 5 s.").withDefault("none"),
		key("streams.tls_key_file", func(c *Config) *string { return &c.Streams.TLSKeyFile }, "", word("path", "", func(string) error { return nil }),
			"Its private key, PEM.").withDefault("none"),
	}
}

func targetKnobs() []knob[Target] {
	return []knob[Target]{
		key("name", func(t *Target) *string { return &t.Name }, required,
			word("name", "1 to 63 letters, digits, `.`, `_`, `-`", checkName),
			"The name that rows give in their target expression."),
		key("driver", func(t *Target) *string { return &t.Driver }, required,
			word("name of a driver", "", func(string) error { return nil }),
			"What applies objects here; see the drivers' documentation."),
		key("concurrency", func(t *Target) *int { return &t.Concurrency }, concurrencyDefault, intIn(1, concurrencyMax),
			"Calls at the same time."),
		key("timeout", func(t *Target) *time.Duration { return &t.Timeout }, timeoutDefault,
			durationIn(timeoutMin, timeoutMax), "How long one call may take."),
		key("sync_interval", func(t *Target) *time.Duration { return &t.SyncInterval }, syncIntervalDefault,
			durationOrOff(syncIntervalMin, syncIntervalMax),
			"Time between two syncs. `off` leaves those at start, after changes of options, and on request."),
		key("sync_mode", func(t *Target) *SyncMode { return &t.SyncMode }, SyncRepair, oneOf(SyncRepair, SyncReport),
			"What syncs that nobody asked for do about differences: put them right, or only show them; see below."),
		key("rate", func(t *Target) *float64 { return &t.Rate }, 0, floatIn(0, rateMax),
			"Calls per second; 0 means no limit."),
		key("backoff.min", func(t *Target) *time.Duration { return &t.Backoff.Min }, backoffMinDefault,
			durationIn(backoffLowest, backoffHighest), "Pause before the second attempt for an object; it doubles each time."),
		key("backoff.max", func(t *Target) *time.Duration { return &t.Backoff.Max }, backoffMaxDefault,
			durationIn(backoffLowest, backoffHighest), "Longest pause between two attempts."),
		key("guard.max_deletes", func(t *Target) **int { return &t.Guard.MaxDeletes }, nil,
			optional(intIn(0, guardDeletesMax), "unset"),
			"More deletes than this within the window are held for approval; 0 holds every delete. Unset: no limit by count."),
		key("guard.max_fraction", func(t *Target) **float64 { return &t.Guard.MaxFraction }, nil,
			optional(floatIn(0, 1), "unset"),
			"A greater part of the target's objects than this, deleted within the window, is held for approval; 1 holds nothing. "+
				"Unset: 0.2, but 10 deletes always pass. Set: meant strictly, but a lone delete passes."),
		key("guard.window", func(t *Target) *time.Duration { return &t.Guard.Window }, guardWindowDefault,
			durationIn(guardWindowMin, guardWindowMax), "Time over which deletes are counted together, whoever owned the target meanwhile."),
	}
}
