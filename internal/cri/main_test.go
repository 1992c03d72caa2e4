package cri

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain fails when a goroutine of this package is left over.
func TestMain(m *testing.M) {
	code := m.Run()
	var left string
	for range 500 {
		if left = leftover(); left == "" {
			os.Exit(code)
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, "a goroutine is left over:\n"+left)
	os.Exit(1)
}

// leftover is the stack of a goroutine that runs this package's code, but for
// the one that asks.
func leftover() string {
	b := make([]byte, 4<<20)
	stacks := strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n")
	for _, s := range stacks[1:] {
		if strings.Contains(s, "berth/internal/cri.") {
			return s
		}
	}
	return ""
}
