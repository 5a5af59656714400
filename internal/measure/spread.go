package measure

import (
	"fmt"
	"slices"
	"time"
)

// Spread is the median of several rounds, with the extremes. No mean: one checkpoint would move it.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf sums rounds up; there must be one at least.
func SpreadOf(values []float64) Spread {
	sorted := slices.Sorted(slices.Values(values))
	median := sorted[len(sorted)/2]
	if len(sorted)%2 == 0 {
		median = (median + sorted[len(sorted)/2-1]) / 2
	}
	return Spread{Median: median, Min: sorted[0], Max: sorted[len(sorted)-1]}
}

// String returns median and extremes, such as "0.81 (0.78 to 0.84)".
func (s Spread) String() string {
	return fmt.Sprintf("%s (%s to %s)", Short(s.Median), Short(s.Min), Short(s.Max))
}

// Short writes a number with about three digits.
func Short(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// Ratios are values over others, round by round: what both rounds suffered from alike cancels out.
func Ratios(values, others []float64) []float64 {
	ratios := make([]float64, len(others))
	for i, other := range others {
		ratios[i] = values[i] / other
	}
	return ratios
}

// Percentile returns the time below which a part p (0 to 1) of sorted times lies, in milliseconds.
func Percentile(sorted []time.Duration, p float64) float64 {
	return float64(sorted[min(len(sorted)-1, int(p*float64(len(sorted))))].Microseconds()) / 1000
}
