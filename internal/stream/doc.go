// Package stream publishes the objects of a target to remote clients. A target with the driver `stream` has no system
// behind it: its owner writes each object to the table reconciler.published, which clients follow by version.
//
// The Publisher is the driver. The server hands it the database when it begins to own the target, and reports each
// complete sync to it: until the first one of an epoch, the stream does not claim to be complete.
package stream
