// Package file is the driver that keeps one file per object:
//
//	<dir>/<resource>/<key>.json
//
// with names encoded by driver.EncodeKey, so that no name leaves the directory. A file holds the spec and
// nothing else: its JSON text and a newline or, if the spec is a JSON string, the text itself. Files are
// replaced by renaming, so that a reader sees the old content or the new one and nothing between, and are on
// disk before a call is Done. A command may be run after changes, for programs that do not watch their files.
package file
