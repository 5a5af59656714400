// Package crash names the places where a test may end, stop or break the process: between two steps that the product
// must survive being cut apart. A plain build has empty calls there and nothing else. A build with the tag `faults`
// reads from the environment what to do where:
//
//	RECONCILER_CRASH=after-call:kill:3,before-settle:stop
//
// is SIGKILL when the point after-call is reached for the third time, and SIGSTOP at the first before-settle. The third
// action is panic. Each point that fires is written to the file RECONCILER_CRASH_LOG first, a line for each: the
// order as it stands above. What is not understood keeps the process from starting.
package crash
