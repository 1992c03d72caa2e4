package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// patience is how long a container's output may take.
const patience = 2 * time.Minute

// throughput has a container write and waits for all of it in the log.
func (p *pod) throughput(ctx context.Context, name string, total int64, line int, how string) error {
	c, err := p.run(ctx, how, strconv.FormatInt(total, 10), strconv.Itoa(line))
	if err != nil {
		return err
	}
	pids, err := p.processes()
	if err != nil {
		return err
	}
	before := cpu(pids)
	begin := time.Now()
	if err := c.begin(); err != nil {
		return err
	}
	for ; !c.complete(); time.Sleep(2 * time.Millisecond) {
		if time.Since(begin) > patience {
			return errors.New("the log does not come to its end")
		}
	}
	took := time.Since(begin)
	used := cpu(pids) - before
	if n, err := countLines(c.log); err != nil || n < total/int64(line)+1 {
		return fmt.Errorf("%d lines in the log, %d were written: %w", n, total/int64(line)+1, err)
	}
	mb := float64(total) / 1e6
	p.s.add(name+": MB/s", mb/took.Seconds(), true)
	p.s.add(name+": CPU ms/MB", used.Seconds()*1000/mb, false)
	return c.remove(ctx)
}

// complete looks at the log's end.
func (c *container) complete() bool {
	f, err := os.Open(c.log)
	if err != nil {
		return false
	}
	defer f.Close()
	if _, err := f.Seek(-int64(len(lastLine)+1), io.SeekEnd); err != nil {
		return false
	}
	b, _ := io.ReadAll(f)
	return strings.HasPrefix(string(b), lastLine)
}

func countLines(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var n int64
	for buf := make([]byte, 1<<20); ; {
		k, err := f.Read(buf)
		n += int64(bytes.Count(buf[:k], []byte{'\n'}))
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// latency follows a log and compares the time that a line names with now.
func (p *pod) latency(ctx context.Context) error {
	c, err := p.run(ctx, "stamps", strconv.Itoa(*lines))
	if err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	watch := os.NewFile(uintptr(fd), "inotify")
	defer watch.Close()
	if _, err := unix.InotifyAddWatch(fd, c.log, unix.IN_MODIFY); err != nil {
		return err
	}
	f, err := os.Open(c.log)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := watch.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := c.begin(); err != nil {
		return err
	}
	var rest []byte
	buf := make([]byte, 64<<10)
	for seen := 0; seen < *lines; {
		if _, err := watch.Read(buf); err != nil {
			return err
		}
		n, err := f.Read(buf)
		now := time.Now()
		if err != nil && err != io.EOF {
			return err
		}
		rest = append(rest, buf[:n]...)
		for {
			l, more, whole := strings.Cut(string(rest), "\n")
			if !whole {
				break
			}
			rest = []byte(more)
			_, text, _ := strings.Cut(l, " F at ")
			at, _, _ := strings.Cut(text, " ")
			if ns, err := strconv.ParseInt(at, 10, 64); err == nil {
				seen++
				p.s.add("write to file: us", us(now.Sub(time.Unix(0, ns))), false)
			}
		}
	}
	return c.remove(ctx)
}

func (p *pod) execs(ctx context.Context) error {
	c, err := p.run(ctx)
	if err != nil {
		return err
	}
	for range *execs {
		begin := time.Now()
		r, err := p.s.rt.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: c.id, Cmd: []string{"true"}, Timeout: 30})
		if err != nil || r.ExitCode != 0 {
			return fmt.Errorf("exec: %v, %w", r, err)
		}
		p.s.add("ExecSync: us", us(time.Since(begin)), false)
	}
	return c.remove(ctx)
}
