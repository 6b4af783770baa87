package dcs

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestJudge: whatever may have been applied is unknown; only an answer that can come from nobody but the server's refusal is not.
func TestJudge(t *testing.T) {
	for name, tc := range map[string]struct {
		err      error
		sent     bool
		fate     fate
		sentinel error
	}{
		"refused connection":        {status.Error(codes.Unavailable, "connection refused"), false, notApplied, ErrUnavailable},
		"broken connection":         {status.Error(codes.Unavailable, "transport is closing"), true, unknown, ErrUnknownOutcome},
		"deadline before the send":  {context.DeadlineExceeded, false, notApplied, ErrUnavailable},
		"deadline after the send":   {context.DeadlineExceeded, true, unknown, ErrUnknownOutcome},
		"cancelled after the send":  {context.Canceled, true, unknown, ErrUnknownOutcome},
		"no leader":                 {rpctypes.ErrGRPCNoLeader, true, notApplied, ErrNoQuorum},
		"leader changed":            {rpctypes.ErrGRPCLeaderChanged, true, unknown, ErrUnknownOutcome},
		"server's timeout":          {rpctypes.ErrGRPCTimeout, true, unknown, ErrUnknownOutcome},
		"timeout, leader failed":    {rpctypes.ErrGRPCTimeoutDueToLeaderFail, true, unknown, ErrUnknownOutcome},
		"timeout, connection lost":  {rpctypes.ErrGRPCTimeoutDueToConnectionLost, true, unknown, ErrUnknownOutcome},
		"stopped":                   {rpctypes.ErrGRPCStopped, true, unknown, ErrUnknownOutcome},
		"proposal dropped":          {status.Error(codes.Unknown, "raft proposal dropped"), true, unknown, ErrUnknownOutcome},
		"internal":                  {status.Error(codes.Internal, "stream terminated"), true, unknown, ErrUnknownOutcome},
		"corrupt":                   {rpctypes.ErrGRPCCorrupt, true, unknown, ErrUnknownOutcome},
		"full":                      {rpctypes.ErrGRPCNoSpace, true, refused, ErrRefused},
		"overloaded":                {rpctypes.ErrGRPCRequestTooManyRequests, true, refused, ErrRefused},
		"duplicate key":             {rpctypes.ErrGRPCDuplicateKey, true, refused, ErrRefused},
		"permission":                {rpctypes.ErrGRPCPermissionDenied, true, refused, ErrDenied},
		"wrong password":            {rpctypes.ErrGRPCAuthFailed, true, refused, ErrDenied},
		"no user given":             {rpctypes.ErrGRPCUserEmpty, true, refused, ErrDenied},
		"old token":                 {rpctypes.ErrGRPCInvalidAuthToken, true, notApplied, ErrDenied},
		"learner":                   {rpctypes.ErrGRPCNotSupportedForLearner, true, notApplied, ErrUnavailable},
		"not yet capable":           {rpctypes.ErrGRPCNotCapable, true, notApplied, ErrUnavailable},
		"certificate":               {fmt.Errorf("dial: %w", ErrDenied), false, notApplied, ErrDenied},
		"as the client library has": {rpctypes.Error(rpctypes.ErrGRPCNoSpace), true, refused, ErrRefused},
		"wrapped":                   {fmt.Errorf("a: %w", rpctypes.Error(rpctypes.ErrGRPCNoLeader)), true, notApplied, ErrNoQuorum},
	} {
		f, sentinel := judge(tc.err, tc.sent)
		if f != tc.fate || !errors.Is(sentinel, tc.sentinel) {
			t.Errorf("%s: got fate %d and %v, want %d and %v", name, f, sentinel, tc.fate, tc.sentinel)
		}
	}
}

// TestAnsweredOnlyBySilence guards the table against a code that says nothing about the request's fate.
func TestAnsweredOnlyBySilence(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal, codes.Aborted, codes.DataLoss} {
		if _, ok := answered[code]; ok {
			t.Errorf("%s is taken for a refusal", code)
		}
	}
}
