package mysql

import (
	"errors"
	"fmt"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// The outcomes of a step that has not done what it should. Every error of this package wraps one of them, or the driver's error
// (which Classify judges).
var (
	// ErrStaleStep: Check refused. A newer term, switch or fence is in force; the whole procedure of the one refused ends here.
	ErrStaleStep = errors.New("mysql: step is no longer current")
	// ErrUnproven: a statement was sent, its answer did not come, and the server could not be asked whether it still runs. Nothing may
	// be inspected or undone there before KillSteps has succeeded.
	ErrUnproven = errors.New("mysql: statement may still be running")
	// ErrStillWritable: the instance could not be made read-only within the time given.
	ErrStillWritable = errors.New("mysql: instance is still writable")
	// ErrNotStable: read-only, but sessions or executed GTIDs still move.
	ErrNotStable = errors.New("mysql: executed GTIDs are not stable")
	// ErrBehind: the replica has not applied what it must.
	ErrBehind = errors.New("mysql: replica is behind")
	// ErrErrant: the instance has transactions that the source lacks. The error is an *ErrantError that names them.
	ErrErrant = errors.New("mysql: errant transactions")
	// ErrReplica: replication is not configured, not running, or has more channels than one.
	ErrReplica = errors.New("mysql: replica is not as it must be")
	// ErrSemiSync: semi-sync is not in the state that it must be in.
	ErrSemiSync = errors.New("mysql: semi-sync is not as it must be")
	// ErrVerify: the user's verification did not pass.
	ErrVerify = errors.New("mysql: verification did not pass")
	// ErrEpoch: baton.epoch on this instance is newer than the step's: its data has seen a later assignment.
	ErrEpoch = errors.New("mysql: instance has seen a newer epoch")
	// ErrUnsupported: the server is of a family or version that has no dialect.
	ErrUnsupported = errors.New("mysql: server version is not supported")
)

// ErrantError names the transactions that the instance has and its new source lacks. It is an ErrErrant.
type ErrantError struct {
	GTIDs gtid.Set
}

// Error says what was seen, what it means, and what to do.
func (e *ErrantError) Error() string {
	return fmt.Sprintf("%v: %s are here and not on the source; joining would lose or fork them; look at them in the binlog, save what is wanted, and rebuild this instance from the source", ErrErrant, e.GTIDs)
}

// Unwrap makes it an ErrErrant.
func (e *ErrantError) Unwrap() error { return ErrErrant }

// seen builds an error of this package: the sentinel, what was seen, what to do.
func seen(sentinel error, format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{sentinel}, args...)...)
}
