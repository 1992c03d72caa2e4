//go:build faults

package fault

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Enabled tells whether faults are compiled in.
const Enabled = true

// Delay is how long the action delay waits.
const Delay = 3 * time.Second

// ErrInjected is what the action fail returns.
var ErrInjected = errors.New("failed on purpose")

// plan is what is to happen at one point.
type plan struct {
	action string
	count  int // strikes when the point is reached this often
}

var (
	// mu guards the plans and their counts.
	mu    sync.Mutex
	plans = load(os.Getenv("BERTH_FAULT"))
)

// load reads BERTH_FAULT. A plan that cannot be read must not look like a run
// without a fault: the process ends.
func load(s string) map[string]*plan {
	m := map[string]*plan{}
	for word := range strings.SplitSeq(s, ",") {
		if word == "" {
			continue
		}
		point, action, ok := strings.Cut(word, ":")
		point, count, numbered := strings.Cut(point, "#")
		n := 1
		if numbered {
			v, err := strconv.Atoi(count)
			ok, n = ok && err == nil, v
		}
		switch action {
		case "kill", "stop", "fail", "delay":
		default:
			ok = false
		}
		if !ok {
			fmt.Fprintf(os.Stderr, "BERTH_FAULT: %q is not <point>[#n]:<kill|stop|fail|delay>\n", word)
			os.Exit(2)
		}
		m[point] = &plan{action, n}
	}
	return m
}

// At strikes if BERTH_FAULT names the point, whose words may be separated by
// spaces. The error is that of fail.
func At(point string) error {
	if len(plans) == 0 {
		return nil
	}
	point = strings.ReplaceAll(point, " ", "-")
	mu.Lock()
	p := plans[point]
	if p == nil {
		mu.Unlock()
		return nil
	}
	p.count--
	action := ""
	if p.count == 0 {
		action = p.action
	}
	mu.Unlock()
	switch action {
	case "kill", "stop":
		sig := syscall.SIGKILL
		if action == "stop" {
			sig = syscall.SIGSTOP
		}
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			return fmt.Errorf("%s at %s: %w", action, point, err)
		}
		if action == "kill" {
			select {} // not an instruction further
		}
	case "fail":
		return fmt.Errorf("%s: %w", point, ErrInjected)
	case "delay":
		time.Sleep(Delay)
	}
	return nil
}
