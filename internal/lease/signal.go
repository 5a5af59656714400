package lease

// signal lets a test wait for a moment instead of sleeping. The zero value does nothing.
type signal[T any] struct{ ch chan T }

// listen must be called before the Manager is started.
func (s *signal[T]) listen() <-chan T {
	s.ch = make(chan T, 100)
	return s.ch
}

// emit never blocks: a test that does not keep up misses values.
func (s *signal[T]) emit(value T) {
	select {
	case s.ch <- value:
	default:
	}
}

// signals are the moments that tests of this package wait for.
type signals struct {
	beat    signal[error]    // a heartbeat was answered, or failed
	planned signal[struct{}] // what a heartbeat showed has been acted on
	resting signal[string]   // a run failed; it will be called again
	dropped signal[string]   // a lease ended without being released
	left    signal[string]   // targets that ceased to be configured
}
