package desired

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// scanRow also returns whether tasks of an apply may govern objects of the target.
func (r *Resource) scanRow(result pgx.Rows) (n int64, row Row, governed bool, err error) {
	var (
		found                     *bool
		spec, match               []byte
		bytes                     *int32
		state                     *State
		wanted, present, approved *bool
		protect, protected        *bool
		desired                   *int64
		attempts, generation      *int32
		operation                 *int64
		open, reapply             *bool
		e                         Entry
	)
	err = result.Scan(&n, &row.Key, &row.Left, &found, &spec, &bytes, &match, &protect, &state, &wanted, &present, &desired, &e.AppliedRevision,
		&e.AppliedHash, &e.FailedHash, &attempts, &e.LastError, &e.HeldBy, &approved, &protected, &generation, &e.Memory, &e.DueIn, &e.AppliedAt, &operation, &open, &reapply, &row.Unopened, &governed, &row.First)
	if err != nil {
		return 0, row, false, err
	}
	if found != nil {
		row.Wanted, row.Spec, row.Match = spec != nil, spec, match
		switch {
		case bytes == nil:
			row.Err = errors.New("its spec is null")
		case row.Left && *bytes <= SpecMost:
			row.Wanted = true
		case spec == nil && *bytes <= SpecMost:
			row.Err = fmt.Errorf("the columns that depends_on refers to have more than %d bytes", MatchMost)
		case spec == nil:
			row.Err = fmt.Errorf("its spec has %d bytes; the largest that is applied has %d", *bytes, SpecMost)
		default:
			row.Hash = driver.HashSpec(spec)
		}
	}
	if state != nil {
		e.State, e.Wanted, e.Present, e.Approved, e.Protected = *state, *wanted, *present, *approved, *protected
		e.DesiredRevision, e.Attempts, e.Generation = *desired, *attempts, *generation
		row.Ledger = &e
	}
	switch {
	case protect != nil:
		row.Protected = *protect
	case row.Ledger != nil:
		row.Protected = e.Protected
	default:
		row.Protected = r.protects
	}
	if operation != nil {
		row.Task = &Task{Operation: *operation, Open: *open, Reapply: *reapply}
	}
	return n, row, governed, nil
}
