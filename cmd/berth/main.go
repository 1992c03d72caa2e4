// Command berth is for people: it runs, shows and removes pods of a berthd, over
// CRI wherever CRI has what it needs. One file a command.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	nodev1 "berth/api/node/v1"
	"berth/internal/version"
)

func main() {
	app := &cli.App{
		Name:                   "berth",
		Usage:                  "run and look after pods on this node",
		Version:                version.Version,
		HideVersion:            true, // `berth version` also asks the daemon
		EnableBashCompletion:   true,
		UseShortOptionHandling: true, // exec -it
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "socket", Usage: "berthd's `SOCKET`", Value: "/run/berth/berthd.sock", EnvVars: []string{"BERTH_SOCKET"}},
			&cli.StringFlag{Name: "log-dir", Usage: "`FOLDER` for the logs of pods that berth runs", Value: "/var/log/berth", EnvVars: []string{"BERTH_LOG_DIR"}},
		},
		Commands: []*cli.Command{
			runCommand, psCommand, logsCommand, execCommand, restartCommand, stopCommand, rmCommand,
			pullCommand, imagesCommand, importCommand, historyCommand, doctorCommand, versionCommand,
		},
		ExitErrHandler: func(*cli.Context, error) {},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return fmt.Errorf("unknown command %q: berth help lists them", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
		OnUsageError: wrongUsage,
	}
	for _, c := range app.Commands {
		c.OnUsageError = wrongUsage
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := app.RunContext(ctx, os.Args); err != nil {
		var code cli.ExitCoder
		if errors.As(err, &code) { // the exit code of what ran
			os.Exit(code.ExitCode())
		}
		if ctx.Err() != nil {
			fmt.Fprintln(os.Stderr, "berth: interrupted")
			os.Exit(130)
		}
		fmt.Fprintln(os.Stderr, "berth:", plain(err))
		os.Exit(1)
	}
}

// wrongUsage says what is wrong, without a page of help.
func wrongUsage(c *cli.Context, err error, _ bool) error {
	name := "berth"
	if c.Command != nil && c.Command.Name != "" && c.Command.Name != name {
		name += " " + c.Command.Name
	}
	return fmt.Errorf("%w (%s --help lists the flags)", err, name)
}

// plain takes gRPC's wrapping off an error's text.
func plain(err error) string {
	s, ok := status.FromError(err)
	switch text := s.Message(); {
	case !ok:
		return err.Error()
	case strings.HasPrefix(text, "connection error:"):
		return "berthd does not answer: is it running?"
	case strings.HasPrefix(text, "error reading from server:"):
		return "berthd went away during the call"
	default:
		return text
	}
}

// client speaks to berthd.
type client struct {
	pods   runtime.RuntimeServiceClient
	images runtime.ImageServiceClient
	node   nodev1.NodeClient
}

// maxMessage is the kubelet's bound too.
const maxMessage = 16 << 20

func connect(c *cli.Context) (*client, error) {
	path := c.String("socket")
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("no berthd at its socket (is it running? is --socket right?): %w", err)
	}
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return &client{runtime.NewRuntimeServiceClient(conn), runtime.NewImageServiceClient(conn), nodev1.NewNodeClient(conn)}, nil
}

// noArgs refuses what the command would ignore.
func noArgs(c *cli.Context) error {
	if c.NArg() > 0 {
		return fmt.Errorf("usage: berth %s (it takes no argument)", c.Command.Name)
	}
	return nil
}

// oneArg returns the command's only argument.
func oneArg(c *cli.Context) (string, error) {
	if c.NArg() != 1 {
		return "", fmt.Errorf("usage: berth %s %s", c.Command.Name, c.Command.ArgsUsage)
	}
	return c.Args().First(), nil
}
