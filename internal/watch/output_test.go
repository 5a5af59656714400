package watch

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sized is a response that notes the size of its largest write.
type sized struct {
	*httptest.ResponseRecorder

	most int
}

func (s *sized) Write(b []byte) (int, error) {
	s.most = max(s.most, len(b))
	return s.ResponseRecorder.Write(b)
}

func (*sized) SetWriteDeadline(time.Time) error { return nil }

// A frame is written in pieces, each with its own time, and needs no buffer of its size.
func TestF151_LargeFramesAreWrittenInPieces(t *testing.T) {
	t.Parallel()
	for _, events := range []bool{false, true} {
		w := &sized{ResponseRecorder: httptest.NewRecorder()}
		o := output{w: w, writing: newWriting(w), events: events}
		spec := `"` + strings.Repeat("x", 1<<20) + `"`
		want := change{resource: "app", key: "a", version: 1, spec: spec}
		require.NoError(t, addFrame(&o, want.appendHead, spec, "}", "place"))
		require.NoError(t, addFrame(&o, nil, want.appendTo(nil), "", ""))
		require.NoError(t, o.now([]byte(`{}`), ""))
		require.NoError(t, o.now([]byte(`{}`), "place"))
		require.LessOrEqual(t, w.most, bufferBytes+headBytes)
		frame, end := string(want.appendTo(nil))+"\n", "{}\n"
		text := frame + frame + end + end
		if events {
			text = "id: place\ndata: " + frame + "\ndata: " + frame + "\ndata: {}\n\nid: place\ndata: {}\n\n"
		}
		require.Equal(t, text, w.Body.String())
		require.True(t, json.Valid(want.appendTo(nil)))
		require.Nil(t, o.buffer)
	}
}
