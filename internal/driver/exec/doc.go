// Package exec is the driver that runs a program for each call. The program reads one JSON object from its
// standard input, does what it says, and answers with its exit status:
//
//	0        done
//	75       not now (a line "retry-after: 30" on standard output says when)
//	64 65 78 never with this spec
//	69       the target does not answer
//	others   failed, try again
//
// What it writes to standard error ends up, shortened, in the object's last error. Nothing of it outlives the
// call: the whole process group is stopped when the call's time is up. A second program may list what the
// target has, a third one say whether it is healthy.
package exec
