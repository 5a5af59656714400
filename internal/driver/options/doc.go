// Package options reads a target's options: strictly, with a default and bounds for each, and reporting every
// problem at once with the path of the option and what would be right. Drivers call it in Kind.Open.
//
//	r := options.New(opts)
//	dir := r.Required("dir")
//	fsync := r.Bool("fsync", true)
//	if err := r.Err(); err != nil {
//		return nil, err
//	}
//
// An option that was not read is unknown, and a problem. No text ever holds an option's value where that
// value may be a secret that somebody put in the wrong place.
package options
