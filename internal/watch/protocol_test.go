package watch_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// A client that speaks a newer protocol is refused before anything else.
func TestProtocolOfTheClient(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.complete()
	for spoken, want := range map[string]string{
		"2":                    `{"error":"the client speaks protocol 2, and this server 1: upgrade the server"}`,
		"0":                    `{"error":"Reconciler-Protocol must be a whole number from 1 on, not \"0\""}`,
		"1.5":                  `{"error":"Reconciler-Protocol must be a whole number from 1 on, not \"1.5\""}`,
		"99999999999999999999": `{"error":"Reconciler-Protocol must be a whole number from 1 on, not \"99999999999999999999\""}`,
	} {
		response := b.do(objects, "Reconciler-Protocol", spoken)
		require.Equal(t, http.StatusBadRequest, response.StatusCode)
		require.Equal(t, "1", response.Header.Get("Reconciler-Protocol"))
		_, text := b.get(objects, "Reconciler-Protocol", spoken)
		require.Equal(t, want+"\n", text)
		status, text := b.post(observations, body(head("s", 1, false), end), "Reconciler-Protocol", spoken)
		require.Equal(t, http.StatusBadRequest, status)
		require.Equal(t, want, text)
	}
	for _, spoken := range []string{"", "1"} {
		response := b.do(objects, "Reconciler-Protocol", spoken)
		require.Equal(t, http.StatusOK, response.StatusCode)
		require.Equal(t, "1", response.Header.Get("Reconciler-Protocol"))
	}
}
