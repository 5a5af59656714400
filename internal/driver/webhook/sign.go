package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of the Standard Webhooks convention (https://www.standardwebhooks.com).
const (
	headerID        = "Webhook-Id"
	headerTimestamp = "Webhook-Timestamp"
	headerSignature = "Webhook-Signature"

	secretPrefix     = "whsec_"
	signatureVersion = "v1"
)

// messageID is the same for every attempt at the same thing: action, names, revision, term and spec are all in
// the body. Another owner, or a newer change, makes another one, also back to an older spec.
func messageID(body []byte) string {
	sum := sha256.Sum256(body)
	return "msg_" + hex.EncodeToString(sum[:16])
}

// sign sets the headers that identify and sign the request: one signature for each secret, so that a receiver
// that still has the old one accepts it too.
func sign(header http.Header, secrets [][]byte, id string, at time.Time, body []byte) {
	header.Set(headerID, id)
	timestamp := strconv.FormatInt(at.Unix(), 10)
	header.Set(headerTimestamp, timestamp)
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		signatures[i] = signatureVersion + "," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	if len(signatures) > 0 {
		header.Set(headerSignature, strings.Join(signatures, " "))
	}
}
