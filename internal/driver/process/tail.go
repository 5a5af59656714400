package process

// tail keeps the last tailBytes of what is written to it, and never fails.
type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p[max(len(p)-tailBytes, 0):]...)
	// Move only when twice full, so that many small writes cost no copy each.
	if len(t.buf) > 2*tailBytes {
		t.buf = append(t.buf[:0], t.bytes()...)
	}
	return len(p), nil
}

func (t *tail) bytes() []byte { return t.buf[max(len(t.buf)-tailBytes, 0):] }
