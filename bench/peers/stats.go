package main

import (
	"fmt"
	"slices"
	"time"
)

// sent is a change, and when its commit was sent.
type sent struct {
	change

	at time.Time
}

// delays returns how long each change took from its commit to the consumer, sorted: until itself came, or any version
// no older where they coalesce. What never came is left out; the inbox counts it.
func delays(coalesces bool, commits []sent, deliveries []delivery) []time.Duration {
	byID := map[int][]delivery{}
	for _, d := range deliveries {
		byID[d.id] = append(byID[d.id], d)
	}
	var all []time.Duration
	for _, c := range commits {
		for _, d := range byID[c.id] {
			if d.n == c.n || coalesces && d.n > c.n {
				all = append(all, d.at.Sub(c.at))
				break
			}
		}
	}
	slices.Sort(all)
	return all
}

// short writes a number with about three digits.
func short(v float64) string {
	switch {
	case v >= 1000:
		return thousands(int(v + .5))
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// thousands writes a whole number with commas.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
