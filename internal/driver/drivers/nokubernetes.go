//go:build nokubernetes

package drivers

import "github.com/pgreconciler/reconciler/internal/driver"

func kubernetesKinds() driver.Registry { return nil }
