package mysql

import (
	"errors"
	"io"
	"net"
	"sync"
)

// Tap is a socket that remembers how far the connection came and the socket's own error, because the driver reports only
// "invalid connection" and logs the rest. Put it around what the driver's DialFunc returns.
type Tap struct {
	net.Conn

	mu    sync.Mutex
	phase Phase
	err   error
}

// NewTap wraps a connected socket.
func NewTap(conn net.Conn) *Tap { return &Tap{Conn: conn, phase: PhaseGreeting} }

// Read notes the first byte of the server and the first error.
func (t *Tap) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.note(n > 0, err)
	return n, err
}

// Write notes the first error.
func (t *Tap) Write(b []byte) (int, error) {
	n, err := t.Conn.Write(b)
	t.note(false, err)
	return n, err
}

func (t *Tap) note(spoke bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if spoke && t.phase == PhaseGreeting {
		t.phase = PhaseAuth
	}
	// Our own closing (a context that ended) says nothing about the server.
	if err != nil && t.err == nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
		t.err = err
	}
}

// LoggedIn is to be called when the driver's Connect has succeeded: what comes now is a query.
func (t *Tap) LoggedIn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase = PhaseQuery
}

// Wrap puts phase and socket error around an error of the driver. A nil Tap (nothing was dialed) is PhaseDial; a nil error stays nil.
func (t *Tap) Wrap(err error) error {
	if err == nil {
		return nil
	}
	if t == nil {
		return &PhaseError{Phase: PhaseDial, Err: err}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return &PhaseError{Phase: t.phase, Err: err, Wire: t.err}
}
