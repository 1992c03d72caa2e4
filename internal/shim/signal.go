package shim

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// Signal numbers are Linux's, whatever machine the shim runs on: containers are
// Linux containers.
const (
	sighup  = 1
	sigkill = 9
	sigterm = 15

	sigrtmin = 34
	sigrtmax = 64
)

// signals are Linux's generic numbers (signal(7)), by name without SIG.
var signals = [...]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE",
	9: "KILL", 10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM",
	16: "STKFLT", 17: "CHLD", 18: "CONT", 19: "STOP", 20: "TSTP", 21: "TTIN", 22: "TTOU",
	23: "URG", 24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH", 29: "IO",
	30: "PWR", 31: "SYS",
}

var aliases = map[string]int{"IOT": 6, "CLD": 17, "POLL": 29, "UNUSED": 31}

// ParseSignal reads a signal's name, with or without SIG and in any case, a
// number, or RTMIN+n and RTMAX-n. "" is SIGTERM. Else InvalidArgument.
func ParseSignal(s string) (int, error) {
	if s == "" {
		return sigterm, nil
	}
	bad := fmt.Errorf("signal %q is unknown: %w", s, errdefs.ErrInvalidArgument)
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > sigrtmax {
			return 0, bad
		}
		return n, nil
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	for n, known := range signals {
		if known != "" && known == name {
			return n, nil
		}
	}
	if n, ok := aliases[name]; ok {
		return n, nil
	}
	base, sign := 0, 0
	switch {
	case strings.HasPrefix(name, "RTMIN"):
		base, sign = sigrtmin, +1
	case strings.HasPrefix(name, "RTMAX"):
		base, sign = sigrtmax, -1
	default:
		return 0, bad
	}
	rest := name[len("RTMIN"):]
	if rest == "" {
		return base, nil
	}
	if rest[0] != "-+"[(sign+1)/2] {
		return 0, bad
	}
	n, err := strconv.ParseUint(rest[1:], 10, 8)
	if err != nil {
		return 0, bad
	}
	if v := base + sign*int(n); v >= sigrtmin && v <= sigrtmax {
		return v, nil
	}
	return 0, bad
}
