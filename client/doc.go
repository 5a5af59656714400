// Package client follows the streams of reconciler: what a target with `driver: stream` should have, then every change.
// It needs neither the database nor anything else of reconciler.
//
//	c, err := client.New("https://reconciler.example.org:8443", client.TokenFile("/run/secrets/eu"))
//	...
//	for frame, err := range c.Watch(ctx, "eu", client.WatchOptions{}) {
//		if err != nil {
//			return err // ctx has ended, or another attempt would not help
//		}
//		switch frame.Type {
//		case client.Upsert: // frame.Object is wanted like this
//		case client.Delete: // it is wanted no more
//		case client.EndOfSnapshot: // what was not named does not exist: act from here on
//		}
//	}
//
// docs/streams.md describes the frames, and what a client may conclude from each of them.
package client
