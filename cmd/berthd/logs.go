package main

import (
	"io"
	"log/slog"

	"github.com/sirupsen/logrus"
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
}

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
