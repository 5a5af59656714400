package lease

import (
	"flag"
	"os"
	"testing"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// These tests wait for leases to end, and leave the processors alone meanwhile.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(pgtest.Main(m))
}
