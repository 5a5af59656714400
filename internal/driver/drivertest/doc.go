// Package drivertest is the conformance suite of drivers. A driver's own tests call Exercise with a function
// that makes a driver on a new, empty target, and a Fixture that reads the target behind the driver's back:
//
//	func TestConformance(t *testing.T) {
//		t.Parallel()
//		drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture { ... })
//	}
//
// A driver that returns driver.Waiting runs ExerciseWaiting as well.
//
// Run it under goleak.VerifyTestMain: the suite closes every driver, and what still runs then is a leak.
package drivertest
