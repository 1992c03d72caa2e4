//go:build linux

package shims

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	shimv1 "berth/api/shim/v1"

	"github.com/containerd/errdefs"
)

const (
	// finishWait bounds how long a shim may take to finish before it is killed.
	finishWait = 20 * time.Second
	// endWait bounds how long its process may take to end after it finished.
	endWait = 5 * time.Second
	// cleanWait bounds the shim binary's delete command.
	cleanWait = 40 * time.Second
)

// Finish ends a pod's shim: all its containers, its sandbox, its process. One
// that does not finish, or is dead, is killed, and the binary's delete command
// gives back what it left. When Finish returns nil there is no process, socket
// or holder of this shim any more. It can be called again; a may be nil.
func (m *Manager) Finish(ctx context.Context, id, dir string, a *Address) error {
	tasks, sessions := m.sockets(id)
	defer m.forget(tasks)
	procs, clean, err := m.end(ctx, id, dir, a)
	defer func() {
		for _, p := range procs {
			p.close()
		}
	}()
	if err != nil {
		return fmt.Errorf("finish shim of pod %s: %w", id, err)
	}
	for _, p := range procs {
		wait, cancel := context.WithTimeout(ctx, endWait)
		err := p.wait(wait)
		cancel()
		if err != nil {
			clean = false
			if err := p.kill(); err != nil {
				return fmt.Errorf("kill shim %d of pod %s: %w", p.pid, id, err)
			}
			if err := p.wait(ctx); err != nil {
				return fmt.Errorf("shim %d of pod %s does not end: %w", p.pid, id, err)
			}
		}
	}
	if !clean {
		if err := m.clean(ctx, id, dir); err != nil {
			return fmt.Errorf("clean up after shim of pod %s: %w", id, err)
		}
	}
	for _, path := range []string{sessions, tasks, filepath.Join(dir, podFile)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("finish shim of pod %s: %w", id, err)
		}
	}
	return nil
}

// end asks the shim to finish. It returns its processes, and whether it
// finished cleanly; if not, the processes are told to die.
func (m *Manager) end(ctx context.Context, id, dir string, a *Address) (procs []*process, clean bool, err error) {
	if a == nil {
		if found, ok, err := m.Probe(ctx, id, dir); err == nil && ok {
			a = found
		}
	}
	if a != nil {
		p, err := openProcess(a.Pid, a.StartTime)
		if err != nil {
			return nil, false, err
		}
		if p != nil {
			procs = append(procs, p)
		}
	} else if procs, err = strays(id); err != nil {
		return procs, false, err
	}
	if len(procs) == 0 {
		return nil, false, nil
	}
	if a != nil {
		err := m.ask(ctx, a)
		if err == nil {
			return procs, true, nil
		}
		if ctx.Err() != nil {
			return procs, false, err
		}
	}
	for _, p := range procs {
		if err := p.kill(); err != nil {
			return procs, false, fmt.Errorf("kill shim %d: %w", p.pid, err)
		}
	}
	return procs, false, nil
}

// ask lets the shim finish by itself. One that says nothing at all within
// infoWait is not waited for.
func (m *Manager) ask(ctx context.Context, a *Address) error {
	ctx, cancel := context.WithTimeout(ctx, finishWait)
	defer cancel()
	s := m.Shim(a)
	defer s.close() // it waits for its clients to leave
	go func() {
		soon, stop := context.WithTimeout(ctx, infoWait)
		defer stop()
		_, err := call(soon, s, func(c shimv1.ShimService) (*shimv1.InfoResponse, error) { return c.Info(soon, &shimv1.InfoRequest{}) })
		if err != nil {
			cancel()
		}
	}()
	_, err := call(ctx, s, func(c shimv1.ShimService) (*shimv1.FinishResponse, error) {
		return c.Finish(ctx, &shimv1.FinishRequest{})
	})
	return err
}

// clean runs the delete command in the pod's run directory. Without its file
// there was never a shim, or it was finished.
func (m *Manager) clean(ctx context.Context, id, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, podFile)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, cleanWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.opts.Binary, "-namespace", defaultNamespace, "-id", id, "-bundle", dir, "delete")
	cmd.Dir = "/"
	cmd.Env = shimEnv()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(out.String())
		if len(text) > 4096 {
			text = text[len(text)-4096:]
		}
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return fmt.Errorf("delete command: %w: %s: %w", err, text, errdefs.ErrUnavailable)
	}
	return nil
}
