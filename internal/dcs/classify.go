package dcs

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrNoQuorum means: etcd answers, but has no leader. It always comes together with ErrUnavailable.
var ErrNoQuorum = errors.New("dcs: etcd has no leader: most of its members are down or cut off, or an election is running")

// ErrDenied means: etcd, or TLS on the way to it, refuses this client.
var ErrDenied = errors.New("dcs: etcd denies access: see user, password, certificates and their dates")

// ErrRefused means: etcd answered that it will not run this transaction: its database is full, or the request is malformed.
var ErrRefused = errors.New("dcs: etcd refuses the transaction")

// fate says what a failed attempt did to the store, which decides whether it may be tried again.
type fate uint8

const (
	notApplied fate = iota // nothing happened; another endpoint, or a later attempt, may succeed
	refused                // nothing happened; no other endpoint would answer otherwise
	unknown                // it may take effect, now or later
)

// answered lists the status codes that only a server gives, after it decided not to apply the request.
// Unavailable, DeadlineExceeded, Canceled, Unknown, Internal and Aborted are missing on purpose: they say nothing about it.
var answered = map[codes.Code]error{
	codes.InvalidArgument:    ErrRefused,
	codes.FailedPrecondition: ErrRefused,
	codes.ResourceExhausted:  ErrRefused,
	codes.OutOfRange:         ErrRefused,
	codes.NotFound:           ErrRefused,
	codes.Unimplemented:      ErrRefused,
	codes.PermissionDenied:   ErrDenied,
}

// denials are the answers about users that carry a code of another class.
var denials = []error{rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty, rpctypes.ErrUserNotFound, rpctypes.ErrPermissionNotGranted}

// errLearner is what a member answers that may not vote yet; the library names only its wire form.
var errLearner = rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)

// judge classifies the error of one attempt, once. sent tells whether the request may have left this process.
func judge(err error, sent bool) (fate, error) {
	err = rpctypes.Error(err)
	for _, d := range denials {
		if errors.Is(err, d) {
			return refused, ErrDenied
		}
	}
	switch {
	case errors.Is(err, ErrDenied): // by TLS, on this endpoint only
		return notApplied, ErrDenied
	case errors.Is(err, rpctypes.ErrNoLeader): // said before the request is looked at, because we ask for a leader
		return notApplied, ErrNoQuorum
	case errors.Is(err, rpctypes.ErrInvalidAuthToken), errors.Is(err, rpctypes.ErrAuthOldRevision):
		return notApplied, ErrDenied // the client has fetched a new token meanwhile
	case errors.Is(err, errLearner), errors.Is(err, rpctypes.ErrNotCapable):
		return notApplied, ErrUnavailable // this member is not ready; others may be
	}
	if sentinel, ok := answered[codeOf(err)]; ok {
		return refused, sentinel
	}
	if sent {
		return unknown, ErrUnknownOutcome
	}
	return notApplied, ErrUnavailable
}

// codeOf returns the status code of an error of the etcd client, which is its own type or a plain status.
func codeOf(err error) codes.Code {
	var answer rpctypes.EtcdError
	switch {
	case errors.As(err, &answer):
		return answer.Code()
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return status.Code(err)
}

// deniedByTLS tells a peer that does not trust us, or that we do not trust, from a connection that merely broke.
func deniedByTLS(err error) bool {
	var untrusted *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	var op *net.OpError
	return errors.As(err, &untrusted) || errors.As(err, &plain) || errors.As(err, &op) && op.Op == "remote error"
}
