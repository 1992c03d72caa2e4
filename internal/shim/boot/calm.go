//go:build linux

package boot

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// Memory of an idle shim, measured (CGO_ENABLED=0, Go 1.26): 1.3 MiB of its own
// after start and 1.5 MiB with a container. A garbage collection costs 0.9 MiB
// for good, most of it what the collector notes of each size of object, so a
// quiet shim must not see one: the default pace starts at a heap of 4 MiB, and
// memory is given back only when there is more of it than that cost. With one
// processor instead of two the allocator's caches take 0.3 MiB less; what a
// shim does is wait for system calls.
const (
	// calmAfter is how long a shim must be quiet before it gives memory back, once.
	calmAfter = 3 * time.Second
	// calmMemory, in bytes of our own, is where that pays.
	calmMemory = 3 << 20
	// procs is GOMAXPROCS of a shim.
	procs = "GOMAXPROCS=1"
)

// calm gives memory back to the machine once after each time of activity.
type calm struct{ timer *time.Timer }

func newCalm() *calm { return &calm{time.AfterFunc(calmAfter, release)} }

func (c *calm) active() { c.timer.Reset(calmAfter) }

// release gives memory back when there is enough of it. The kernel is asked how
// much: the Go runtime's own answer costs half as much as a collection.
func release() {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return
	}
	f := strings.Fields(string(b)) // pages: size, resident, of files, …
	if len(f) < 3 {
		return
	}
	resident, err1 := strconv.Atoi(f[1])
	file, err2 := strconv.Atoi(f[2])
	if err1 == nil && err2 == nil && (resident-file)*os.Getpagesize() > calmMemory {
		debug.FreeOSMemory()
	}
}
