package lease

import (
	"flag"
	"os"
	"testing"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Most of the time these tests wait for leases to expire.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(pgtest.Main(m))
}
