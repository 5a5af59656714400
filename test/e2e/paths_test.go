package e2e_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// C9, C68: the paths and contents of the contract, for keys that try to be something else.
func TestFilesHaveThePathsAndContentsOfTheContract(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure([]object{w.fileTarget("eu")})
	w.exec(`
CREATE SCHEMA "Mixed Case";
CREATE TABLE texts (key text PRIMARY KEY, spec jsonb NOT NULL);
CREATE TABLE "Mixed Case"."Select" ("user" text, "a b" int, "Order" uuid, PRIMARY KEY ("user", "a b"));
CREATE TABLE moments (at timestamptz PRIMARY KEY, span interval, raw bytea, ratio float8);
SELECT reconciler.track('text', 'texts', '{key}', $$'eu'$$, spec => 'spec');
SELECT reconciler.track('Odd.resource-1_x', '"Mixed Case"."Select"', '{user,a b}', $$'eu'$$);
SELECT reconciler.track('moment', 'moments', '{at}', $$'eu'$$)`)
	w.start()

	long := strings.Repeat("k", 1000)
	want := map[string]string{"text/" + strings.Repeat(long[:200]+"%/", 4) + long[:200] + ".json": "{}\n"}
	w.exec(`INSERT INTO texts VALUES ($1, '{}')`, long)
	for _, one := range []struct{ key, path, spec, content string }{
		{"plain-1.2_3", "plain-1.2_3", `{"b":1,  "a": [1.50, null, true]}`, `{"a": [1.50, null, true], "b": 1}` + "\n"},
		{"Raw", "Raw", `"line 1\nline 2 <&> \"ü\""`, "line 1\nline 2 <&> \"ü\""},
		{"empty-text", "empty-text", `""`, ""},
		{"number", "number", `12345678901234567890.10`, "12345678901234567890.10\n"},
		{"list", "list", `["<script>", "\u2028", "😀"]`, "[\"<script>\", \"\u2028\", \"😀\"]\n"},
		{"", "%", `{"k": "empty"}`, `{"k": "empty"}` + "\n"},
		{".hidden", "%2Ehidden", `1`, "1\n"},
		{"-rf", "%2Drf", `1`, "1\n"},
		{"..", "%2E.", `1`, "1\n"},
		{"../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd", `1`, "1\n"},
		{"/etc/passwd", "%2Fetc%2Fpasswd", `1`, "1\n"},
		{"'; drop table texts; --", "%27%3B%20drop%20table%20texts%3B%20--", `1`, "1\n"},
		{"a b\n\tc", "a%20b%0A%09c", `1`, "1\n"},
		{"100%", "100%25", `1`, "1\n"},
		{`back\slash`, "back%5Cslash", `1`, "1\n"},
		{"Köln☃", "K%C3%B6ln%E2%98%83", `1`, "1\n"},
		{"CON", "CON", `1`, "1\n"},
		{"a.json", "a.json", `1`, "1\n"},
	} {
		w.exec(`INSERT INTO texts VALUES ($1, $2)`, one.key, one.spec)
		want["text/"+one.path+".json"] = one.content
	}
	w.exec(`INSERT INTO "Mixed Case"."Select" VALUES ('a/b\c', 7, NULL), ('', -1, '6ba7b810-9dad-11d1-80b4-00c04fd430c8')`)
	odd := "Odd.resource-1_x/"
	want[odd+`a%5C%2Fb%5C%5Cc%2F7.json`] = `{"a b": 7, "user": "a/b\\c", "Order": null}` + "\n"
	want[odd+`%2F-1.json`] = `{"a b": -1, "user": "", "Order": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}` + "\n"
	w.exec(`SET LOCAL TIME ZONE 'Asia/Kolkata'; SET LOCAL DateStyle = 'SQL, DMY'; SET LOCAL IntervalStyle = 'postgres_verbose';
SET LOCAL bytea_output = escape; SET LOCAL extra_float_digits = -10;
INSERT INTO moments VALUES ('2026-02-01 03:04:05.678901+00', '1 year 2 mons 3 days 04:05:06', '\xff00', 0.1::float8 + 0.2)`)
	want["moment/2026-02-01T03%3A04%3A05.678901.json"] = `{"at": "2026-02-01T03:04:05.678901+00:00", "raw": "\\xff00", "span": "P1Y2M3DT4H5M6S", "ratio": 0.30000000000000004}` + "\n"

	w.wait()
	w.has("eu", want)
	var differences []object
	require.Equal(t, 0, w.json(&differences, "diff").code, differences)
	w.exec(`TRUNCATE texts, "Mixed Case"."Select", moments`)
	w.has("eu", nil)
}
