package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func namespace(t *testing.T, path string) string {
	t.Helper()
	s, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// other makes a namespace that lasts as long as the test.
func other(t *testing.T) string {
	t.Helper()
	path, end := make(chan string), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			path <- ""
			return
		}
		path <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		<-end
	}()
	p := <-path
	if p == "" {
		t.Fatal("no network namespace could be made")
	}
	t.Cleanup(func() { close(end) })
	return p
}

func TestDo(t *testing.T) {
	there := other(t)
	want, host := namespace(t, there), namespace(t, own)
	if want == host {
		t.Fatal("it is no other namespace")
	}
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			failure := errors.New("what f returned")
			var got string
			err := Do(there, func() (err error) {
				if got, err = os.Readlink(own); err != nil {
					return err
				}
				return failure
			})
			if got != want || err != failure {
				t.Errorf("f ran in %s, want %s; %v", got, want, err)
			}
		})
	}
	wg.Wait()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, th := range threads {
		if ns, err := os.Readlink("/proc/self/task/" + th.Name() + "/ns/net"); err == nil && ns == want {
			n++
		}
	}
	if n != 1 { // the test's own
		t.Errorf("%d threads in the namespace", n)
	}
}

func TestDoFails(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "net")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{plain, plain + "x"} {
		if err := Do(p, func() error { t.Error("f ran"); return nil }); err == nil {
			t.Errorf("%s was entered", p)
		}
	}
}
