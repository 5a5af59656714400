package leader

import (
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// heard keeps what is logged.
type heard struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (h *heard) Write(line []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Write(line)
}

func (h *heard) count(message string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Count(h.text.String(), "msg="+message+" ")
}

// One generation mends every trigger of a resource: that is told once, and nothing is called broken that is not. What
// cannot be mended is told of once too, however often it is looked at.
func TestStewardTellsOfCaptureOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := &heard{}
	b.log = slog.New(slog.NewTextHandler(h, nil))
	b.exec(`ALTER TABLE apps DISABLE TRIGGER ALL`)
	b.listen()
	b.lead()
	b.works(1)
	b.eventually("triggers are enabled again", func() bool { return b.text(`SELECT count(*)::text FROM reconciler.capture_problems()`) == "0" })
	b.eventually("it is told", func() bool { return h.count("capture_mended") == 1 })
	require.Zero(t, h.count("capture_broken"))

	b.exec(`CREATE TABLE gone (id int PRIMARY KEY); SELECT reconciler.track('gone', 'gone', '{id}', '''eu'''); DROP TABLE gone CASCADE`)
	m := &mender{steward: &Steward{Pool: b.db.Pool, Logger: b.log}}
	for range 3 {
		_, err := m.turn(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, 1, h.count("capture_broken"))
}
