package loop

// Name is what a loop is called in the log, in metrics and in psql.
type Name string

// The leader's duties.
const (
	Lead       Name = "lead"       // all of them: they begin again after an error that ends the term
	Tick       Name = "tick"       // makes revisions
	Expand     Name = "expand"     // turns changes of base tables into changes of objects
	Register   Name = "register"   // makes targets visible that only rows name
	Open       Name = "open"       // opens rollouts
	Retain     Name = "retain"     // empties the outbox
	Forget     Name = "forget"     // removes what need not be kept
	Mend       Name = "mend"       // repairs triggers and views
	Uncaptured Name = "uncaptured" // looks at tables whose triggers may not write the outbox
	Misfits    Name = "misfits"    // names rows that can be no object
	Count      Name = "count"      // counts rollouts and objects by state
	Configure  Name = "configure"  // keeps targets.configured true
)

// The loops of every process.
const (
	Heartbeat   Name = "heartbeat"   // renews leases
	Acquire     Name = "acquire"     // takes leases
	Listen      Name = "listen"      // waits for notifications
	Follow      Name = "follow"      // reads revisions that another process made
	Definitions Name = "definitions" // reads what is tracked
	Turns       Name = "turns"       // learns whose turn it is in rollouts
	PoolWork    Name = "pool_work"   // the connections of database_url
	PoolDirect  Name = "pool_direct" // the connections of direct_url
	Streams     Name = "streams"     // reads streams for watchers
	Watchers    Name = "watchers"    // writes down who watches
	Credentials Name = "credentials" // reads tokens and the certificate of streams again

	NotifyWatchers Name = "notify_watchers" // notifies processes with watchers
)

// The parts of a target's owner.
const (
	Own      Name = "own"      // the owner as a whole: it begins again after an error of a part
	Read     Name = "read"     // reads changes from the outbox
	Due      Name = "due"      // finds objects whose next attempt has come
	Dispatch Name = "dispatch" // reads rows and hands out calls
	Turn     Name = "turn"     // does what rollouts ask
	Health   Name = "health"   // asks whether the target is healthy
	Watch    Name = "watch"    // watches what changes in the target
	Settle   Name = "settle"   // records results
	Sync     Name = "sync"     // runs syncs
	List     Name = "list"     // lists what the target has
	Rows     Name = "rows"     // reads the rows of every resource, for syncs and calls
	Steer    Name = "steer"    // obeys commands
)

var (
	ofLeader  = []Name{Lead, Tick, Expand, Register, Open, Retain, Forget, Mend, Uncaptured, Misfits, Count, Configure}
	ofProcess = []Name{Heartbeat, Acquire, Listen, Follow, Definitions, Turns, PoolWork, PoolDirect, Streams, Watchers, NotifyWatchers, Credentials}
	ofTarget  = []Name{Own, Read, Due, Dispatch, Turn, Health, Watch, Settle, Sync, List, Rows, Steer}
)

// Stops reports whether a process with this loop failing is not ready. A resource that cannot be read could not be read by another
// process either, nor a target be listed, and what a watch misses a sync finds.
func (n Name) Stops() bool { return n != Rows && n != List && n != Watch }

// logged are the loops whose first failure has a line of its own in the log, with more in it.
var logged = map[Name]bool{Lead: true, Own: true, Heartbeat: true, Listen: true}
