package main

import (
	"context"
	"io"
	"log/slog"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// routeLibraryLogs sends what containerd's libraries log through logrus to our
// log, one level lower: what they warn of is rarely news to an operator, and what
// is comes back to us as an error.
func routeLibraryLogs(level slog.Level) {
	l := logrus.StandardLogger()
	l.SetOutput(io.Discard)
	l.SetLevel(logrus.WarnLevel)
	if level <= slog.LevelDebug {
		l.SetLevel(logrus.InfoLevel)
	}
	l.AddHook(toSlog{})
	// The streaming library logs through klog, an error for each client that leaves.
	klog.SetSlogLogger(slog.New(lower{slog.Default().Handler()}))
}

// lower hands records on one level lower.
type lower struct{ slog.Handler }

const oneLevel = slog.LevelError - slog.LevelWarn

// Enabled implements slog.Handler.
func (l lower) Enabled(ctx context.Context, level slog.Level) bool {
	return l.Handler.Enabled(ctx, level-oneLevel)
}

// Handle implements slog.Handler.
func (l lower) Handle(ctx context.Context, r slog.Record) error {
	r.Level -= oneLevel
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l lower) WithAttrs(a []slog.Attr) slog.Handler { return lower{l.Handler.WithAttrs(a)} }

// WithGroup implements slog.Handler.
func (l lower) WithGroup(name string) slog.Handler { return lower{l.Handler.WithGroup(name)} }

// toSlog is a hook that hands entries on.
type toSlog struct{}

// Levels implements logrus.Hook.
func (toSlog) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (toSlog) Fire(e *logrus.Entry) error {
	level := slog.LevelDebug
	switch {
	case e.Level <= logrus.ErrorLevel:
		level = slog.LevelWarn
	case e.Level == logrus.WarnLevel:
		level = slog.LevelInfo
	}
	args := make([]any, 0, 2*len(e.Data))
	for k, v := range e.Data {
		args = append(args, k, v)
	}
	slog.Log(e.Context, level, e.Message, args...)
	return nil
}
