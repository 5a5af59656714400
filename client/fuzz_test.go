package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// follower does what docs/streams.md asks of a client, in the plainest way.
type follower struct {
	specs    map[string]string
	versions map[string]int64
	named    map[string]bool
	snapshot bool
	primed   bool
}

func (f *follower) take(frame client.Frame) {
	fresh := frame.Version > f.versions[frame.Key]
	switch frame.Type {
	case client.Upsert:
		f.named[frame.Key] = true
		if fresh {
			f.specs[frame.Key], f.versions[frame.Key] = string(frame.Spec), frame.Version
		}
	case client.Delete:
		if fresh {
			delete(f.specs, frame.Key)
			delete(f.versions, frame.Key)
		}
	case client.Keep:
		f.named[frame.Key] = true
	case client.Reset:
		f.snapshot = true
		clear(f.named)
		clear(f.versions)
	case client.EndOfSnapshot:
		if !f.snapshot {
			break // a server sends none
		}
		f.snapshot, f.primed = false, true
		maps.DeleteFunc(f.specs, func(key, _ string) bool { return !f.named[key] })
	default:
	}
}

// frameOf makes a frame of two bytes. Few keys, specs and versions meet often.
func frameOf(a, b byte, snapshot bool) (f client.Frame) {
	f.Resource, f.Key, f.Version = "app", fmt.Sprint(a>>4%4), int64(b>>4)+1
	switch a % 8 {
	case 0, 1, 2:
		f.Type, f.Spec = client.Upsert, json.RawMessage(fmt.Sprintf(`{"image": "%d"}`, b%4))
	case 3:
		f.Type = client.Delete
	case 4:
		f.Type = client.Keep
	case 5:
		f = client.Frame{Type: client.Waiting, Reason: "database"}
	case 6:
		f = client.Frame{Type: client.Reset, Reason: "cut"}
	default:
		f = client.Frame{Type: client.Checkpoint, Bookmark: "b"}
		if snapshot {
			f.Type = client.EndOfSnapshot
		}
	}
	return f
}

// C6. Whatever the order of frames, the cache is what the last complete snapshot and the changes after it give. What mappers see leads
// from one complete state to the next, and nothing is to be seen in between.
func FuzzInformer(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x00, 0x10, 0x10, 0x20, 0x07, 0x00, 0x06, 0x00, 0x00, 0x01, 0x07, 0x00})
	random := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		data := make([]byte, 400)
		for n := range data {
			data[n] = byte(random.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		i := client.NewInformer(streamtest.NewServer("eu").Client(), "eu", client.InformerOptions{})
		apps := client.For[deployment](i, "app")
		index := apps.Index("image", func(d deployment) []string { return []string{d.Image} })
		c := client.NewController(i, "app", func(context.Context, string) (client.Result, error) { return client.Applied(), nil })
		want := &follower{specs: map[string]string{}, versions: map[string]int64{}, named: map[string]bool{}, snapshot: true}
		seen := map[string]int{}
		client.Map(c, apps, func(old, now *deployment) []string {
			require.False(t, want.snapshot, "nothing changes while a snapshot is under way")
			require.NotEqual(t, old, now)
			if old != nil {
				seen[old.Image]--
			}
			if now != nil {
				seen[now.Image]++
			}
			return nil
		})
		for ; len(data) >= 2; data = data[2:] {
			frame := frameOf(data[0], data[1], want.snapshot)
			first := !want.primed
			want.take(frame)
			i.Take(t.Context(), frame)
			got, images := map[string]string{}, map[string]int{}
			for key, d := range apps.All() {
				got[key] = fmt.Sprintf(`{"image": %q}`, d.Image)
				images[d.Image]++
			}
			require.Equal(t, want.specs, got)
			require.Equal(t, want.primed, i.Status().Synced)
			if first {
				seen = maps.Clone(images) // the first end has controllers look at everything
			}
			if !want.snapshot {
				maps.DeleteFunc(seen, func(_ string, n int) bool { return n == 0 })
				require.Equal(t, images, seen)
			}
			require.Equal(t, slices.Sorted(maps.Keys(got)), index.Keys("0", "1", "2", "3"))
		}
	})
}
