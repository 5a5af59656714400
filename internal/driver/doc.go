// Package driver is what a target must be able to do, in two calls: bring one object to its spec
// (Apply) and make one object absent (Delete). Everything else is optional and found by type
// assertion: Lister, BatchApplier, Checker, HealthReporter, ObjectHealthReporter,
// Troubled.
//
// The apply side (internal/apply) is the only caller. It promises: never two calls at once for one
// object, never an older spec after a newer one, and a context that ends at the call's timeout or
// when the caller stops owning the target, whichever comes first.
//
// A driver promises: both calls are idempotent, deleting what is absent is Done, nothing it returns
// contains a secret, and it stops soon after its context ends. Drivers know nothing of PostgreSQL's
// side of the product and never import each other; each has a package of its own below this one and
// passes drivertest.Exercise.
package driver
