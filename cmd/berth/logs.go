package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var logsCommand = &cli.Command{
	Name: "logs", Usage: "show a container's log", ArgsUsage: "POD|CONTAINER",
	Flags: []cli.Flag{
		&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until the container ends"},
		&cli.BoolFlag{Name: "timestamps", Aliases: []string{"t"}, Usage: "with the time of each line"},
	},
	Action: func(c *cli.Context) error {
		word, err := oneArg(c)
		if err != nil {
			return err
		}
		cl, err := connect(c)
		if err != nil {
			return err
		}
		k, err := cl.findContainer(c.Context, word)
		if err != nil {
			return err
		}
		l := &logReader{c: cl, id: k.Id, stdout: os.Stdout, stderr: os.Stderr, times: c.Bool("timestamps")}
		_, err = l.read(c.Context, c.Bool("follow"))
		return err
	},
}

// follow prints a container's log until it ends, and returns its exit code.
func (c *client) follow(ctx context.Context, id string, stdout, stderr io.Writer) (int32, error) {
	return (&logReader{c: c, id: id, stdout: stdout, stderr: stderr}).read(ctx, true)
}

// logReader prints the lines of a CRI log. A log that is rotated meanwhile is
// read on in the new file, after the old one's end.
type logReader struct {
	c              *client
	id             string
	stdout, stderr io.Writer
	times          bool
	path           string
	f              *os.File
	r              *bufio.Reader
	rest           string // of a line that is still being written
}

const pollInterval = 100 * time.Millisecond

func (l *logReader) read(ctx context.Context, follow bool) (int32, error) {
	st, err := l.status(ctx)
	if err != nil {
		return 0, err
	}
	if st.LogPath == "" {
		return 0, errors.New("the container keeps no log")
	}
	l.path = st.LogPath
	defer func() {
		if l.f != nil {
			l.f.Close()
		}
	}()
	for {
		if err := l.drain(); err != nil {
			return 0, err
		}
		if !follow || st.State == runtime.ContainerState_CONTAINER_EXITED {
			return st.ExitCode, nil
		}
		select {
		case <-ctx.Done():
			return 0, nil
		case <-time.After(pollInterval):
		}
		// Asked before the log is read to its end: an exited container writes no more.
		if st, err = l.status(ctx); err != nil {
			return 0, err
		}
	}
}

func (l *logReader) status(ctx context.Context) (*runtime.ContainerStatus, error) {
	r, err := l.c.pods.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: l.id})
	return r.GetStatus(), err
}

// drain prints what there is, in this file and in those that replaced it.
func (l *logReader) drain() error {
	for {
		if l.f == nil {
			f, err := os.Open(l.path)
			if err != nil {
				return fmt.Errorf("open the log: %w", err)
			}
			l.f, l.r = f, bufio.NewReader(f)
		}
		for {
			s, err := l.r.ReadString('\n')
			l.rest += s
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("read the log: %w", err)
			}
			l.print(l.rest)
			l.rest = ""
		}
		now, err1 := os.Stat(l.path)
		old, err2 := l.f.Stat()
		if err1 != nil || err2 != nil || os.SameFile(now, old) {
			return nil
		}
		l.f.Close()
		l.f = nil
	}
}

// print shows one record: "<time> <stream> <P|F> <text>\n".
func (l *logReader) print(line string) {
	f := strings.SplitN(line, " ", 4)
	if len(f) < 4 {
		fmt.Fprint(l.stderr, line)
		return
	}
	w, text := l.stdout, f[3]
	if f[1] == "stderr" {
		w = l.stderr
	}
	if strings.HasPrefix(f[2], "P") { // the line goes on in the next record
		text = strings.TrimSuffix(text, "\n")
	}
	if l.times {
		text = f[0] + " " + text
	}
	fmt.Fprint(w, text)
}
