package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// shownDifferences is how many differences a failure lists.
const shownDifferences = 10

// comparison is what came of comparing every target with the rows.
type comparison struct {
	rows, files int // of the targets of driver file
	edge        int // objects that the rows want of the webhook
	leftovers   int // temporary files of a killed process
	differences []string
}

// compare reads rows and files by code that shares nothing with the product.
func (d *demo) compare(ctx context.Context) (comparison, error) {
	names := []string{"edge"}
	for _, p := range d.places {
		names = append(names, p.name)
	}
	conn, err := pgx.Connect(ctx, d.server.URL(database))
	if err != nil {
		return comparison{}, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	want, err := wanted(ctx, conn, names)
	if err != nil {
		return comparison{}, fmt.Errorf("read what the rows want: %w", err)
	}
	var c comparison
	have := objects{}
	for _, p := range d.places {
		leftovers, err := have.read(p)
		if err != nil {
			return c, fmt.Errorf("read the files of %s: %w", p.name, err)
		}
		c.leftovers += leftovers
	}
	c.files = len(have)
	hooked, _ := d.hook.has()
	for path, spec := range hooked {
		have.put("edge/"+path, spec)
	}
	for path := range want {
		if strings.HasPrefix(path, "edge/") {
			c.edge++
		} else {
			c.rows++
		}
	}
	c.differences = differences(want, have)
	return c, nil
}

// differError says that targets do not have what the rows want.
type differError struct{ comparison }

func (e *differError) Error() string {
	first := "their numbers"
	if len(e.differences) > 0 {
		first = e.differences[0]
	}
	return fmt.Sprintf("%s between %s and what is there (%s, and %s wanted of a webhook): %s", counted(len(e.differences), "difference"),
		counted(e.rows+e.edge, "running row"), counted(e.files, "file"), counted(e.edge, "object"), first)
}

// check is compare for when everything must be equal.
func (d *demo) check(ctx context.Context) (comparison, error) {
	c, err := d.compare(ctx)
	if err != nil {
		return c, err
	}
	if len(c.differences) > 0 || c.files != c.rows {
		for _, difference := range c.differences[:min(len(c.differences), shownDifferences)] {
			d.screen.say("    differs: %s", difference)
		}
		return c, &differError{c}
	}
	return c, nil
}

// verdict compares everything a last time, ends the process and prints the last line.
func (d *demo) verdict(ctx context.Context) error {
	d.screen.say("\n    every file is compared with the tables, by code that shares nothing with reconciler")
	c, err := d.check(ctx)
	if err != nil {
		return err
	}
	if err := d.releaseIsOut(ctx); err != nil {
		return err
	}
	if err := d.stop(ctx); err != nil {
		return err
	}
	d.screen.figure("in the webhook", "%s, as the rows want", counted(c.edge, "object"))
	d.screen.figure("release 42", "completed, after it was halted and tried again")
	if c.leftovers > 0 {
		d.screen.figure("left by kill -9", "%s, which a sync removes when it is a minute old", counted(c.leftovers, "temporary file"))
	}
	d.screen.figure("the demo took", "%s", seconds(time.Since(d.began)))
	d.screen.verdict(true, "ok: %s files in %d targets equal %s running rows", count(c.files), len(d.places), count(c.rows))
	return nil
}

// stop ends the processes, which must end well.
func (d *demo) stop(ctx context.Context) error {
	for _, c := range []*child{d.agent, d.child} {
		code, _, err := c.terminate(ctx)
		if err == nil && code != 0 {
			err = fmt.Errorf("after SIGTERM `reconciler %s` ended with exit code %d", c.cmd.Args[1], code)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
