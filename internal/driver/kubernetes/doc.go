// Package kubernetes is the driver `kubernetes`: it makes the objects of a cluster equal to manifests in rows. A spec is one manifest
// or a list of manifests; the objects in the cluster that come from one row are its members.
//
// Members are applied with server-side apply, under a field manager of the target's. Each carries marks: labels and annotations that
// name the target, the resource and the key it comes from. What has no such mark, or another owner's, is left alone.
//
// The driver remembers the members of each row (driver.Outcome.Memory): name, uid, a hash of what was applied, and a digest of the
// fields that the cluster says the target owns. So it deletes what a list has lost, makes no call that would change nothing, and
// finds drift from metadata alone: a manager that changes or removes one of our fields takes it out of our entry in managedFields.
package kubernetes
