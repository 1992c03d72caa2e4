package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var execCommand = &cli.Command{
	Name: "exec", Usage: "run a command in a container", ArgsUsage: "POD|CONTAINER COMMAND [ARG ...]",
	Flags: []cli.Flag{
		&cli.BoolFlag{Name: "stdin", Aliases: []string{"i"}, Usage: "pass standard input on"},
		&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "with a terminal"},
	},
	Action: func(c *cli.Context) error {
		if c.NArg() < 2 {
			return fmt.Errorf("usage: berth exec [OPTIONS] POD|CONTAINER COMMAND [ARG ...]")
		}
		cl, err := connect(c)
		if err != nil {
			return err
		}
		k, err := cl.findContainer(c.Context, c.Args().First())
		if err != nil {
			return err
		}
		r, err := cl.pods.Exec(c.Context, &runtime.ExecRequest{
			ContainerId: k.Id, Cmd: c.Args().Tail(), Tty: c.Bool("tty"), Stdin: c.Bool("stdin"), Stdout: true, Stderr: !c.Bool("tty"),
		})
		if err != nil {
			return err
		}
		return stream(c.Context, r.Url, c.Bool("stdin"), c.Bool("tty"))
	},
}

// stream joins this terminal to a streaming URL.
func stream(ctx context.Context, to string, stdin, tty bool) error {
	u, err := url.Parse(to)
	if err != nil {
		return fmt.Errorf("berthd gave a streaming address that is none: %w", err)
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, "POST", u)
	if err != nil {
		return err
	}
	o := remotecommand.StreamOptions{Stdout: os.Stdout, Stderr: os.Stderr, Tty: tty}
	if stdin {
		o.Stdin = os.Stdin
	}
	if fd := int(os.Stdin.Fd()); tty && term.IsTerminal(fd) {
		old, err := term.MakeRaw(fd)
		if err != nil {
			return fmt.Errorf("set up the terminal: %w", err)
		}
		defer term.Restore(fd, old)
		o.TerminalSizeQueue = newSizes(fd)
	}
	if tty {
		o.Stderr = nil
	}
	err = e.StreamWithContext(ctx, o)
	var code utilexec.CodeExitError
	if errors.As(err, &code) {
		return cli.Exit("", code.Code)
	}
	return err
}

// sizes tells the terminal's size, first and whenever it changes.
type sizes struct {
	fd      int
	changed chan os.Signal
}

func newSizes(fd int) *sizes {
	s := &sizes{fd, make(chan os.Signal, 1)}
	signal.Notify(s.changed, syscall.SIGWINCH)
	s.changed <- syscall.SIGWINCH
	return s
}

// Next implements remotecommand.TerminalSizeQueue.
func (s *sizes) Next() *remotecommand.TerminalSize {
	<-s.changed
	w, h, err := term.GetSize(s.fd)
	if err != nil {
		return nil
	}
	return &remotecommand.TerminalSize{Width: uint16(w), Height: uint16(h)}
}
