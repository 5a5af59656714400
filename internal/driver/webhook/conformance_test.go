package webhook_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/driver/fixtures"
	"github.com/pgreconciler/reconciler/internal/driver/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	token  = "t0ken-value"
)

func getenv(name string) string {
	return map[string]string{"HOOK_SECRET": secret, "HOOK_TOKEN": "Bearer " + token}[name]
}

func open(t *testing.T, opts driver.Options) driver.Driver {
	t.Helper()
	d, err := webhook.Kind().Open("test", opts, driver.Env{Getenv: getenv})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(t.Context())) })
	return d
}

func TestConformance(t *testing.T) {
	t.Parallel()
	drivertest.Exercise(t, fixtures.Webhook)
}
