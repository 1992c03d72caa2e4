//go:build linux

package stdio

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func TestInput(t *testing.T) {
	noLeaks(t)
	for _, once := range []bool{false, true} {
		r, w := pipe(t)
		in := NewInput(w, once)
		var wg sync.WaitGroup
		for i := range 4 { // clients
			wg.Go(func() {
				for range 100 {
					if _, err := in.Write(bytes.Repeat([]byte{byte('a' + i)}, 1000)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		got := make(chan []byte)
		go func() {
			p, _ := io.ReadAll(r)
			got <- p
		}()
		wg.Wait()
		if err := in.CloseWrite(); err != nil {
			t.Error(err)
		}
		if _, err := in.Write([]byte("x")); once != errdefs.IsFailedPrecondition(err) {
			t.Errorf("once %v: write after a client's end: %v", once, err)
		}
		if err := errors.Join(in.Close(), in.Close()); err != nil {
			t.Error(err)
		}
		p := <-got
		r.Close()
		if want := 400_000; len(bytes.TrimSuffix(p, []byte("x"))) != want {
			t.Errorf("%d bytes of %d", len(p), want)
		}
		for i := 0; i+1000 <= len(p); i += 1000 {
			if bytes.Count(p[i:i+1000], p[i:i+1]) != 1000 {
				t.Fatal("writes of two clients are mixed")
			}
		}
	}
}

// Closing stdin does not wait for a process that does not read.
func TestInputCloseEndsAWrite(t *testing.T) {
	noLeaks(t)
	r, w := pipe(t)
	defer r.Close()
	in := NewInput(w, false)
	done := make(chan error)
	go func() { _, err := in.Write(make([]byte, 1<<20)); done <- err }()
	time.Sleep(20 * time.Millisecond)
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the write hangs")
	}
}
