// Package sync is the snapshot job: it compares everything that running rows ask of a target with the ledger, and
// where the driver can list, the ledger with what the target really has. What differs goes into the owner's queue on
// the sync lane; what no row wants becomes a tombstone. It repairs what capture could not see: triggers disabled,
// rows restored, files edited by hand, a process killed between call and ledger.
//
// A Scan finds differences and changes nothing; `reconciler diff` uses it alone. A Runner runs scans for an owned
// target, when asked, at intervals, and at the start of ownership.
//
// Nothing is deleted on the strength of a scan: each object is looked at by itself before it is, and tombstones are
// counted to the end before the first of them goes.
package sync
