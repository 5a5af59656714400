package webhook

import (
	"net/http"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
)

// FuzzSign: whoever has one of the secrets verifies the request with the convention's own library; nobody else does,
// and no changed body passes.
func FuzzSign(f *testing.F) {
	f.Add([]byte("secret"), []byte("older"), []byte(`{"action":"apply"}`), uint16(3), byte(1))
	f.Add([]byte{0}, []byte{0, 0}, []byte{}, uint16(0), byte(255))
	f.Add([]byte("a b,v1"), []byte("whsec_"), []byte("é\x00\xff."), uint16(1), byte(0x80))
	f.Fuzz(func(t *testing.T, secret, older, body []byte, at uint16, flip byte) {
		if len(secret) == 0 || len(older) == 0 || string(secret) == string(older) || len(secret) > 64 || len(older) > 64 {
			return // HMAC hashes longer keys; the config refuses empty ones
		}
		header := http.Header{}
		sign(header, [][]byte{secret, older}, messageID(body), time.Now(), body)
		for _, key := range [][]byte{secret, older} {
			verifier, err := standardwebhooks.NewWebhookRaw(key)
			require.NoError(t, err)
			require.NoError(t, verifier.Verify(body, header))
			if len(body) > 0 && flip != 0 {
				changed := []byte(string(body))
				changed[int(at)%len(body)] ^= flip
				require.Error(t, verifier.Verify(changed, header))
			}
		}
		// HMAC pads keys with zeros: one that differs in these only is the same key.
		stranger, err := standardwebhooks.NewWebhookRaw([]byte("x" + string(secret)))
		require.NoError(t, err)
		if strings.TrimRight("x"+string(secret), "\x00") != strings.TrimRight(string(older), "\x00") {
			require.Error(t, stranger.Verify(body, header))
		}
		same := http.Header{}
		sign(same, [][]byte{secret}, messageID(body), time.Now(), body)
		require.Equal(t, header.Get(headerID), same.Get(headerID), "another attempt has the same id")
	})
}
