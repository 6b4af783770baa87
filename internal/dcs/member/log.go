package member

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// levels says how loud etcd may be in Baton's log. Its warnings ("took too long", a peer not yet up) are daily life and no
// reason for anybody to act; what Baton concludes from them it says itself.
var levels = map[zapcore.Level]slog.Level{
	zapcore.WarnLevel:   slog.LevelDebug,
	zapcore.ErrorLevel:  slog.LevelWarn,
	zapcore.DPanicLevel: slog.LevelError,
	zapcore.PanicLevel:  slog.LevelError,
	zapcore.FatalLevel:  slog.LevelError,
}

// newLogger gives etcd a logger that writes into log. Where etcd would end the process, only the goroutine ends and the reason goes to broken:
// a full disk under etcd must not take the guard along.
func newLogger(log *slog.Logger, name string, broken chan<- error) *zap.Logger {
	return zap.New(core{log.With(slog.String("node", name))}, zap.WithFatalHook(giveUp{broken}))
}

type giveUp struct{ broken chan<- error }

func (g giveUp) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok {
			err = errors.Join(err, cause)
		}
	}
	select {
	case g.broken <- err:
	default: // one reason is enough
	}
	runtime.Goexit()
}

// core is a zapcore.Core over slog.
type core struct{ log *slog.Logger }

func (c core) Enabled(level zapcore.Level) bool {
	to, ok := levels[level]
	return ok && (level == zapcore.FatalLevel || c.log.Enabled(context.Background(), to))
}

func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{slog.New(c.log.Handler().WithAttrs(attrs(fields)))}
}

func (c core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c core) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	says := append([]slog.Attr{slog.String("says", entry.Message)}, attrs(fields)...)
	c.log.LogAttrs(context.Background(), levels[entry.Level], "embedded etcd", says...)
	return nil
}

func (c core) Sync() error { return nil }

func attrs(fields []zapcore.Field) []slog.Attr {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(values)
	}
	var out []slog.Attr
	for _, key := range slices.Sorted(maps.Keys(values.Fields)) {
		out = append(out, slog.Any(key, values.Fields[key]))
	}
	return out
}
