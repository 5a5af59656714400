package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

const printedYAML = `database_url: postgres://app:hunter2@db/shop
targets:
  - name: eu
    driver: hook
    options:
      url: https://me:hunter2@h/x
      headers: {X-Key: hunter2}
      secret_env: HOOK_SECRET
      list: [a, 1]
      "odd\tname": "line\nbreak"
`

func TestPrintTableShowsOriginsAndNoSecrets(t *testing.T) {
	t.Parallel()
	opts, clean := setup(t, printedYAML)
	opts.Environ = []string{"RECONCILER_TARGETS_EU_OPTIONS_ROOM=hunter2", "RECONCILER_TARGETS_EU_RATE=0.5"}
	opts.Overrides = map[string]string{"listen": "off"}
	cfg, err := Load(opts)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, cfg.Print(&out, FormatTable))
	require.Equal(t, `KEY                             VALUE                            ORIGIN
database_url                    postgres://app:REDACTED@db/shop  reconciler.yaml:1:15
direct_url                      postgres://app:REDACTED@db/shop  default
listen                          off                              flag --listen
listen_names                                                     default
pprof_listen                    off                              default
notify                          auto                             default
poll_interval                   200ms                            default
shutdown_timeout                20s                              default
memory_limit                    192MiB                           default
log.level                       info                             default
log.format                      text                             default
retention.max_age               24h                              default
retention.max_rows              10000000                         default
streams.listen                  off                              default
streams.tls_cert_file                                            default
streams.tls_key_file                                             default
targets[0].name                 eu                               reconciler.yaml:3:11
targets[0].driver               hook                             reconciler.yaml:4:13
targets[0].options.headers      {"X-Key":"REDACTED"}             reconciler.yaml:7:16
targets[0].options.list         ["a",1]                          reconciler.yaml:9:13
"targets[0].options.odd\tname"  "line\nbreak"                    reconciler.yaml:10:20
targets[0].options.room         REDACTED                         env RECONCILER_TARGETS_EU_OPTIONS_ROOM
targets[0].options.secret_env   HOOK_SECRET                      reconciler.yaml:8:19
targets[0].options.url          https://REDACTED@h/x             reconciler.yaml:6:12
targets[0].concurrency          8                                default
targets[0].timeout              5s                               default
targets[0].sync_interval        10m                              default
targets[0].sync_mode            repair                           default
targets[0].rate                 0.5                              env RECONCILER_TARGETS_EU_RATE
targets[0].backoff.min          500ms                            default
targets[0].backoff.max          5m                               default
targets[0].guard.max_deletes    unset                            default
targets[0].guard.max_fraction   unset                            default
targets[0].guard.window         1m                               default
`, clean(out.String()))
}

func TestPrintJSONHoldsTheSameValues(t *testing.T) {
	t.Parallel()
	opts, _ := setup(t, printedYAML)
	cfg, err := Load(opts)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, cfg.Print(&out, FormatJSON))
	require.NotContains(t, out.String(), marker)
	var got struct {
		File   string
		Values []Value
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	require.Equal(t, cfg.File, got.File)
	require.Equal(t, cfg.Values(), got.Values)
}

type brokenWriter struct{}

var errBroken = errors.New("pipe is broken")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestPrintReportsWhatCannotBePrinted(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, "")
	require.NoError(t, err)
	require.EqualError(t, cfg.Print(&bytes.Buffer{}, "xml"), `print the configuration as "xml": the formats are table and json`)
	require.ErrorIs(t, cfg.Print(brokenWriter{}, FormatTable), errBroken)
	require.ErrorIs(t, cfg.Print(brokenWriter{}, FormatJSON), errBroken)
}
