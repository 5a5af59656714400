package main

import (
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivers"
)

// registry holds every driver that this binary brings.
func registry() driver.Registry { return drivers.All() }
