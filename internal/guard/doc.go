// Package guard holds deletes that look like an accident.
//
// The owner of a target has one Guard. It asks Take before each delete, and before an apply removes parts of
// an object, and Decide before several deletes that pass together or not at all. The Guard promises that no window of time sees more deletes pass than its Limits allow for the objects that the target
// had when the window began. It knows no database: the owner writes what passed (Write) and tells the next guard (Remember).
package guard
