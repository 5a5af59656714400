package loop

import "encoding/json"

// report is a failure as a heartbeat has it; the view reconciler.failing_loops reads it.
type report struct {
	Loop     Name    `json:"loop"`
	Target   string  `json:"target"`
	For      float64 `json:"for"`  // seconds since the first failure
	Last     float64 `json:"last"` // seconds since the last one
	Failures int64   `json:"failures"`
	Error    string  `json:"error"`
}

// Report returns the loops that have been failing for longer than Lasting as JSON, for the next heartbeat; nil: none has.
func (m *Monitor) Report() []byte {
	var reports []report
	for _, f := range m.Failing(Lasting) {
		reports = append(reports, report{f.Loop, f.Target, f.For.Seconds(), f.Since.Seconds(), f.Failures, f.Text})
	}
	if reports == nil {
		return nil
	}
	text, err := json.Marshal(reports)
	if err != nil {
		return nil // strings and numbers cannot fail
	}
	return text
}
