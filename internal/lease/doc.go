// Package lease decides which process works on which target, and which one leads the tick. PostgreSQL is the only
// coordinator: there is a row for each lease, with an owner, a term and how long it lives without a heartbeat of its owner.
//
// A Manager is one process's part in it. It says every few seconds that the process is there, which renews all that it
// owns (a heartbeat: one new row in a table that nothing on the way of a change reads), takes what falls to it, and calls
// Config.RunTarget for each target and Config.RunLeader for the leadership, on goroutines of its own. cmd/reconciler
// makes one; internal/apply and internal/sync live inside RunTarget and see only the Grant, internal/leader lives inside
// RunLeader.
//
// # What it promises
//
//   - Two processes never run one target at the same time, as long as RunTarget returns when its context ends and
//     starts no call unless Grant.Allows says that the lease outlives it. A process counts the life of its lease on
//     its own monotonic clock, from before it sent the heartbeat; others count on theirs, from when they saw it.
//     So a frozen or cut-off owner gives up before anybody else may begin. All that is assumed of clocks is that
//     monotonic ones go at the same pace.
//   - Every run has a term of its own, higher than any before it. A write that begins with reconciler.fence (SQLSTATE
//     RC001, see IsFenced) can therefore not come from an older run, of this process neither.
//   - A target whose owner died is taken over when its lease expires: TTL after another process first saw the last
//     heartbeat, which is up to HeartbeatInterval after that was sent. One whose owner stopped well is taken over at once. After anything but a good release Grant.Clean is false until a complete
//     sync, for the target may have objects that the ledger does not know.
//   - Targets are shared out evenly among the processes that list them: all of them compute the same plan from the
//     same rows, and one moves a target only if that makes the shares more even.
//
// # What it cannot promise
//
// A call that a frozen process had begun ends when that process wakes up; targets that can should refuse older
// terms. A process that starts cannot know how long the owner of before has been dead: it waits for a whole lease.
package lease
