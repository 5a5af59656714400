//go:build !nokubernetes

package drivers

import (
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes"
)

func kubernetesKinds() driver.Registry { return driver.Registry{kubernetes.Kind()} }
