package main

import (
	"os"
	"testing"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}
