//go:build linux

package stdio

import (
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"
)

// noLeaks fails the test when it leaves a goroutine or a file descriptor. Call
// it first, so that its check comes after every other cleanup.
func noLeaks(t *testing.T) {
	t.Helper()
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	t.Cleanup(func() {
		deadline := time.Now().Add(5 * time.Second)
		for runtime.NumGoroutine() > goroutines || openFiles(t) > files {
			if time.Now().After(deadline) {
				var b strings.Builder
				_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
				t.Fatalf("left over: goroutines %d -> %d, files %d -> %d\n%s",
					goroutines, runtime.NumGoroutine(), files, openFiles(t), b.String())
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
