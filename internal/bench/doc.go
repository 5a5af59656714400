// Package bench is `reconciler bench`: it measures, on a user's own server, what tracking costs those who write, how soon
// after a commit the driver is called, and whether NOTIFY is worth its price there. Run does it all; Advise turns figures
// into sentences.
//
// It measures in a scratch database of its own on the same server, which Run makes and drops. A schema inside the user's
// database would not do: the product's schema has one name for good, so a second installation beside the first is
// impossible; its advisory locks and NOTIFY channels belong to a database, so every measured commit would wake, or keep
// awake, the user's own processes, and those would measure along. What decides the figures is the same for every database
// of a server: disk, WAL, settings, processor, the lock that commits with NOTIFY queue for. (A database in a tablespace
// of its own gets its scratch database there, and synchronous_commit is taken from it.) The price is the right CREATEDB.
//
// The real installation is not touched: nothing is written to the user's database, and nobody there is woken, for
// notifications stay within their database. What is shared is felt: processor, disk and WAL are loaded while writers write
// at full speed, and commits with NOTIFY anywhere on the server queue for one lock.
//
// A scratch database is named reconciler_bench_ and sixteen hexadecimal digits. Those are the key of an advisory lock that
// the run holds, from before the database exists until after it is gone, in a session whose end the server notices. So a
// run that was killed leaves a database that nobody holds: the next run drops it. One that is held is left alone.
package bench
