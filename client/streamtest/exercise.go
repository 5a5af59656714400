package streamtest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/pgreconciler/reconciler/client"
)

// Exercise checks what a server at a URL sends: that snapshots, bookmarks, resets and errors keep what docs/streams.md promises. It reads
// only. The server must have a stream with at least one object, and its objects must not change during the test.
func Exercise(t *testing.T, server string) {
	t.Helper()
	var list struct {
		Targets []string `json:"targets"`
	}
	e := &exercise{server: server}
	_, body := e.get(t, http.StatusOK, "/v1/targets")
	if err := json.Unmarshal(body, &list); err != nil || len(list.Targets) == 0 {
		t.Fatalf("GET /v1/targets names no target: %s", body)
	}
	for _, target := range list.Targets {
		e := &exercise{server: server, path: "/v1/targets/" + url.PathEscape(target) + "/objects", target: target}
		t.Run(target, func(t *testing.T) {
			e.objects, e.end = e.snapshot(t, "")
			if len(e.objects) == 0 {
				t.Fatal("the target has no object")
			}
			t.Run("ResumesAtTheEnd", e.resumes)
			t.Run("ResumesWithinASnapshot", e.resumesWithin)
			t.Run("ResetsABookmarkOfOtherFilters", e.scopes)
			t.Run("EndsAfterTheTimeout", e.timeouts)
			t.Run("ServesOneObject", e.gets)
			t.Run("RefusesWhatIsWrong", e.refuses)
			t.Run("IsFollowedByTheClient", e.follows)
		})
	}
}

type exercise struct {
	server, target, path string
	protocol             int // of the newest response

	objects map[id]client.Object // of the snapshot
	within  []string             // bookmarks inside it
	end     client.Frame
}

// get asks for a path, in a protocol if there is one, and requires a status.
func (e *exercise) get(t *testing.T, status int, path string, protocol ...int) (http.Header, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.server+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range protocol {
		req.Header.Set("Reconciler-Protocol", strconv.Itoa(p))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	if resp.StatusCode != status {
		t.Fatalf("GET %s: status %d, not %d: %s", path, resp.StatusCode, status, body)
	}
	if resp.Header.Get("Reconciler-Installation") == "" {
		t.Errorf("GET %s: there is no header Reconciler-Installation", path)
	}
	if e.protocol, err = strconv.Atoi(resp.Header.Get("Reconciler-Protocol")); err != nil {
		t.Errorf("GET %s: the header Reconciler-Protocol is not a number: %v", path, err)
	}
	var failure struct {
		Error string `json:"error"`
	}
	if status != http.StatusOK && (json.Unmarshal(body, &failure) != nil || failure.Error == "") {
		t.Errorf("GET %s: the error is not {\"error\": \"...\"}: %s", path, body)
	}
	return resp.Header, body
}

// frames asks for objects with parameters, and checks each frame by itself.
func (e *exercise) frames(t *testing.T, query string) (frames []client.Frame) {
	t.Helper()
	_, body := e.get(t, http.StatusOK, e.path+"?"+query)
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, len(body)+1)
	for lines.Scan() {
		var f client.Frame
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			t.Fatalf("a line is not a frame: %v: %s", err, lines.Bytes())
		}
		if problem := check(f); problem != "" {
			t.Errorf("%s: %s", problem, lines.Bytes())
		}
		frames = append(frames, f)
	}
	if len(frames) == 0 || body[len(body)-1] != '\n' {
		t.Fatalf("GET %s?%s ends without a whole line", e.path, query)
	}
	return frames
}

// check returns what is wrong with a frame.
func check(f client.Frame) string {
	named := f.Resource != "" && f.Key != ""
	hash := sha256.Sum256(f.Spec)
	switch f.Type {
	case client.Upsert:
		switch {
		case !named || f.Version < 1 || len(f.Spec) == 0:
			return "an upsert needs resource, key, version and spec"
		case f.Hash != hex.EncodeToString(hash[:16]):
			return "the hash is not that of the spec"
		}
	case client.Delete:
		if !named || f.Version < 1 || len(f.Spec) > 0 {
			return "a delete needs resource, key and version, and has no spec"
		}
	case client.Keep, client.Waiting, client.Reset:
		if f.Reason == "" || f.Type == client.Keep && !named {
			return "a frame needs a reason, and a keep resource and key"
		}
	case client.EndOfSnapshot, client.Checkpoint:
		return checkPlace(f)
	default:
	}
	return ""
}

// checkPlace returns what is wrong with a frame that has a bookmark.
func checkPlace(f client.Frame) string {
	within := f.Type == client.Checkpoint && f.Version == 0
	switch {
	case f.Bookmark == "":
		return "a frame needs a bookmark"
	case (f.Controls == nil) != within:
		return "a frame needs controls, unless it is within a snapshot"
	}
	return ""
}

// snapshot asks for a snapshot, checks the order of its frames, and returns its objects and its end.
func (e *exercise) snapshot(t *testing.T, query string) (objects map[id]client.Object, end client.Frame) {
	t.Helper()
	objects, e.within = map[id]client.Object{}, nil
	frames := e.frames(t, query)
	for n, f := range frames {
		at := id{f.Resource, f.Key}
		switch f.Type {
		case client.Upsert, client.Delete:
			if f.Version < objects[at].Version {
				t.Errorf("versions of %v go back: %d follows %d", at, f.Version, objects[at].Version)
			}
			if objects[at] = f.Object; f.Type == client.Delete {
				delete(objects, at)
			}
		case client.Checkpoint:
			e.within = append(e.within, f.Bookmark)
			if f.Revision != 0 || f.Version != 0 {
				t.Errorf("a checkpoint within a snapshot has version %d and revision %d", f.Version, f.Revision)
			}
		case client.EndOfSnapshot:
			if n != len(frames)-1 {
				t.Errorf("%d frames follow the end of the snapshot", len(frames)-1-n)
			}
			for at, o := range objects {
				if o.Version > f.Version {
					t.Errorf("%v has version %d, after the %d of the end of the snapshot", at, o.Version, f.Version)
				}
			}
			return objects, f
		default:
		}
	}
	t.Fatalf("a snapshot ends without end_of_snapshot, with %+v", frames[len(frames)-1])
	return nil, end
}

// resumes: after the end nothing is new, which a checkpoint shows.
func (e *exercise) resumes(t *testing.T) {
	frames := e.frames(t, "since="+url.QueryEscape(e.end.Bookmark))
	if last := frames[len(frames)-1]; len(frames) != 1 || last.Type != client.Checkpoint || last.Revision < e.end.Revision {
		t.Errorf("a checkpoint at revision %d or later should follow, not %+v", e.end.Revision, frames)
	}
}

// resumesWithin: a snapshot goes on where it was cut.
func (e *exercise) resumesWithin(t *testing.T) {
	for _, bookmark := range e.within {
		rest, _ := e.snapshot(t, "since="+url.QueryEscape(bookmark))
		for at, o := range rest {
			if e.objects[at].Version != o.Version {
				t.Errorf("%v has version %d, and %d after the snapshot was resumed", at, e.objects[at].Version, o.Version)
			}
		}
	}
}

func (e *exercise) scopes(t *testing.T) {
	for at := range e.objects {
		query := "resource=" + url.QueryEscape(at.resource)
		frames := e.frames(t, query+"&since="+url.QueryEscape(e.end.Bookmark))
		if frames[0].Type != client.Reset || frames[0].Reason != "scope" {
			t.Errorf("a reset with the reason scope should come first, not %+v", frames[0])
		}
		want := maps.Clone(e.objects)
		maps.DeleteFunc(want, func(other id, _ client.Object) bool { return other.resource != at.resource })
		got, _ := e.snapshot(t, query)
		same(t, want, got)
		return
	}
}

func (e *exercise) timeouts(t *testing.T) {
	frames := e.frames(t, "watch=true&timeout=1s&since="+url.QueryEscape(e.end.Bookmark))
	if last := frames[len(frames)-1]; last.Type != "closed" || last.Reason != "timeout" {
		t.Errorf("closed with the reason timeout should come last, not %+v", last)
	}
}

func (e *exercise) gets(t *testing.T) {
	for at, want := range e.objects {
		header, body := e.get(t, http.StatusOK, e.path+"/"+url.PathEscape(at.resource)+"/"+url.PathEscape(at.key))
		var got client.Object
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		same(t, map[id]client.Object{at: want}, map[id]client.Object{at: got})
		if tag := header.Get("ETag"); tag != `"`+want.Hash+`"` {
			t.Errorf("the ETag is %s, not the hash %q", tag, want.Hash)
		}
		e.get(t, http.StatusNotFound, e.path+"/"+url.PathEscape(at.resource)+"/there-is-no-such-key")
		return
	}
}

func (e *exercise) refuses(t *testing.T) {
	for _, query := range []string{"?since=nonsense", "?misspelt=1", "?prefix=a", "?watch=true&timeout=1ms"} {
		e.get(t, http.StatusBadRequest, e.path+query)
	}
	e.get(t, http.StatusNotFound, "/v1/there-is-nothing-here")
	e.get(t, http.StatusBadRequest, e.path, e.protocol+1)
}

// follows: the package client sees the same.
func (e *exercise) follows(t *testing.T) {
	c, err := client.New(e.server)
	if err != nil {
		t.Fatal(err)
	}
	got := map[id]client.Object{}
	for f, err := range c.Watch(t.Context(), e.target, client.WatchOptions{Once: true}) {
		if err != nil {
			t.Fatal(err)
		}
		switch at := (id{f.Resource, f.Key}); f.Type {
		case client.Upsert:
			got[at] = f.Object
		case client.Delete:
			delete(got, at)
		default:
		}
	}
	same(t, e.objects, got)
	http.DefaultClient.CloseIdleConnections()
}

// same requires the same objects.
func same(t *testing.T, want, got map[id]client.Object) {
	t.Helper()
	if a, b := describe(want), describe(got); a != b {
		t.Errorf("the objects are\n%snot\n%s", b, a)
	}
}

func describe(objects map[id]client.Object) string {
	var text strings.Builder
	for _, at := range ordered(objects) {
		o := objects[at]
		fmt.Fprintf(&text, "%s %q version %d revision %d hash %s spec %s\n", at.resource, at.key, o.Version, o.Revision, o.Hash, o.Spec)
	}
	return text.String()
}
