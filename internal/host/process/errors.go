package process

import (
	"encoding/json"
	"errors"
	"strings"

	"berth/internal/host"
)

// startError makes a *host.StartError of a runtime call that failed with a
// message of its own. Other errors (a deadline, a missing runtime) stay as they are.
func startError(err error) error {
	var e *callError
	if !errors.As(err, &e) || !e.logged {
		return err
	}
	return &host.StartError{Code: startCode(e.message), Message: plainMessage(e.message)}
}

// plainMessage is the runtime's message without the name of its own command.
func plainMessage(s string) string {
	for _, p := range []string{"runc run failed: ", "runc create failed: ", "runc start failed: ", "exec failed: "} {
		s = strings.TrimPrefix(s, p)
	}
	return strings.TrimSpace(s)
}

// lastLine is what a runtime's init said last on the container's stderr, where
// crun writes its log's form, in red on a terminal.
func lastLine(b []byte) string {
	s := strings.TrimSpace(string(b))
	s = s[strings.LastIndexByte(s, '\n')+1:]
	s = strings.TrimSuffix(strings.TrimPrefix(s, "\x1b[1;31m"), "\x1b[0m")
	var entry struct{ Msg string }
	if json.Unmarshal([]byte(s), &entry) == nil && entry.Msg != "" {
		return entry.Msg
	}
	return s
}

// startCode reads the shell's exit code for a command that could not be started
// out of runc's or crun's message.
//
//	runc: exec: "x": executable file not found in $PATH
//	runc: exec: "/x": stat /x: no such file or directory
//	runc: exec /x: exec format error                     (on stderr, from its init)
//	crun: executable file `x` not found in $PATH: No such file or directory
//	crun: open executable: Permission denied
//	crun: exec container process `/x`: Exec format error
//	crun: exec: Exec format error
func startCode(message string) int32 {
	m := strings.ToLower(message)
	about := strings.HasPrefix(m, "exec: ") // the command, and not a mount or a namespace
	for _, p := range []string{"exec: \"", "exec /", "executable file", "open executable", "exec container process"} {
		about = about || strings.Contains(m, p)
	}
	switch {
	case !about:
		return 128
	case strings.Contains(m, "not found"), strings.Contains(m, "no such file or directory"):
		return 127
	case strings.Contains(m, "permission denied"), strings.Contains(m, "exec format error"),
		strings.Contains(m, "is a directory"), strings.Contains(m, "operation not permitted"):
		return 126
	}
	return 128
}
