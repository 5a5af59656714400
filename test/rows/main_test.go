package rows_test

import (
	"os"
	"testing"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
