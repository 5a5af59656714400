// Package desired reads what users' rows ask for. It is the one place that builds SQL which names a user's relation:
// each tracked resource has a generated view reconciler.desired_<resource> with the columns target, key, running, spec,
// match, and the key columns in their own types (key_1, key_2, ...), so that the indexes of the user's table are used.
//
// The apply side reads single objects by key (Resource.Read), the sync reads pages in key order (Resource.Page), the
// leader maps a base table's change to objects (Resource.Expand).
package desired
