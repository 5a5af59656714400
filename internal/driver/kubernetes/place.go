package kubernetes

import "github.com/pgreconciler/reconciler/internal/driver"

// Place returns the cluster. Two targets may share one: an object that another target's marks are on is refused.
func (c *cluster) Place() driver.Place {
	return driver.Place{Option: "context", Name: "cluster " + c.server, Detail: c.target}
}
