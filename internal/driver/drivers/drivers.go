// Package drivers is the list of every driver that the product brings. It is a package of its own because
// drivers import package driver, and none of them another.
package drivers

import (
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/discard"
	"github.com/pgreconciler/reconciler/internal/driver/exec"
	"github.com/pgreconciler/reconciler/internal/driver/file"
	"github.com/pgreconciler/reconciler/internal/driver/postgres"
	"github.com/pgreconciler/reconciler/internal/driver/webhook"
	"github.com/pgreconciler/reconciler/internal/stream"
)

// All returns every kind of driver, by name.
func All() driver.Registry {
	all := driver.Registry{discard.Kind(), exec.Kind(), file.Kind(), postgres.Kind(), stream.Kind(), webhook.Kind()}
	return append(all, kubernetesKinds()...)
}
