//go:build linux

package boot

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"berth/internal/host"
	"berth/internal/shim"
)

// Config is what the binary's main knows and this package does not.
type Config struct {
	Version string
	// Host makes a host for a runtime.
	Host func(*shim.HostOptions) (host.Host, error)
}

// args are the command line, as containerd gives it to every shim since 1.2.
type args struct {
	debug, version, info                bool
	namespace, id, bundle               string
	address, publishBinary, ttrpc, grpc string
	sessions                            bool
	action                              string
}

const (
	actionStart  = "start"
	actionDelete = "delete"
	// actionServe is the server process itself: listeners are descriptors 3
	// and, with -sessions, 4.
	actionServe = "serve"
)

func parse(argv []string, stderr io.Writer) (*args, error) {
	a := &args{}
	f := flag.NewFlagSet("containerd-shim-berth-v1", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.BoolVar(&a.debug, "debug", false, "write debug messages to the log")
	f.BoolVar(&a.version, "v", false, "show the version and exit")
	f.BoolVar(&a.version, "version", false, "show the version and exit")
	f.BoolVar(&a.info, "info", false, "read options from stdin, print what the runtime can to stdout")
	f.StringVar(&a.namespace, "namespace", "", "containerd namespace of the pod")
	f.StringVar(&a.id, "id", "", "id of the container or pod")
	f.StringVar(&a.bundle, "bundle", "", "bundle, when it is not the working directory (delete)")
	f.StringVar(&a.address, "address", "", "containerd's gRPC address; part of the socket's name")
	f.StringVar(&a.publishBinary, "publish-binary", "", "accepted and ignored")
	f.StringVar(new(string), "socket", "", "accepted and ignored")
	f.BoolVar(&a.sessions, "sessions", false, "serve: descriptor 4 is the listener for stdio sessions")
	if err := f.Parse(argv); err != nil {
		return nil, err
	}
	a.ttrpc, a.grpc = os.Getenv("TTRPC_ADDRESS"), os.Getenv("GRPC_ADDRESS")
	a.action = f.Arg(0)
	return a, nil
}

// Main runs the binary and returns its exit code.
func Main(argv []string, cfg *Config) int {
	a, err := parse(argv, os.Stderr)
	if err != nil {
		return 2
	}
	if err := run(a, cfg); err != nil {
		fmt.Fprintf(os.Stderr, "containerd-shim-berth-v1: %v\n", err)
		return 1
	}
	return 0
}

func run(a *args, cfg *Config) error {
	switch {
	case a.version:
		fmt.Printf("%s:\n  Version:  %s\n  Go:       %s\n", filepath.Base(os.Args[0]), cfg.Version, runtime.Version())
		return nil
	case a.info:
		return info(cfg, os.Stdin, os.Stdout)
	case a.namespace == "":
		return fmt.Errorf("-namespace is not set")
	case a.id == "":
		return fmt.Errorf("-id is not set")
	}
	switch a.action {
	case actionStart:
		return start(a, os.Stdin, os.Stdout)
	case actionDelete:
		return remove(a, cfg, os.Stdout)
	case actionServe:
		return serve(a, cfg)
	default:
		return fmt.Errorf("action %q is not start or delete", a.action)
	}
}
