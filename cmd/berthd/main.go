// Command berthd is the daemon: it serves CRI v1 and keeps the pods of a node.
//
//	berthd [--config FILE] [--root DIR] [--state DIR] [--log-level LEVEL]
//	berthd config default      print every key of the config file, with its meaning
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"berth/internal/config"
	"berth/internal/namespaces"
	"berth/internal/ocispec"
	"berth/internal/version"
)

func main() {
	// Children that are this program again, with a task of their own.
	namespaces.Main()
	ocispec.PathMain()

	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "berthd:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fl := flag.NewFlagSet("berthd", flag.ContinueOnError)
	fl.SetOutput(io.Discard) // an error is told once, by main
	path := fl.String("config", config.DefaultPath, "configuration `FILE`; the default one may be absent")
	root := fl.String("root", "", "`DIR` for what outlives a reboot (default from the configuration: /var/lib/berth)")
	state := fl.String("state", "", "`DIR` for what does not (default from the configuration: /run/berth)")
	level := fl.String("log-level", "", "`LEVEL`: debug, info, warn or error")
	vers := fl.Bool("version", false, "print the version")
	if err := fl.Parse(args); errors.Is(err, flag.ErrHelp) {
		usage(fl)
		return nil
	} else if err != nil {
		return fmt.Errorf("%w (berthd --help lists the flags)", err)
	}
	switch {
	case *vers:
		fmt.Println("berthd", version.Version)
		return nil
	case fl.NArg() == 2 && fl.Arg(0) == "config" && fl.Arg(1) == "default":
		return config.WriteDefault(os.Stdout)
	case fl.NArg() > 0:
		return fmt.Errorf("unknown argument %q; the only words are: config default", strings.Join(fl.Args(), " "))
	}
	named := false
	fl.Visit(func(f *flag.Flag) { named = named || f.Name == "config" })
	cfg, err := load(*path, named)
	if err != nil {
		return err
	}
	for from, to := range map[*string]*string{root: &cfg.Root, state: &cfg.State, level: &cfg.LogLevel} {
		if *from != "" {
			*to = *from
		}
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("pods need root: run berthd as root")
	}
	setUpLog(cfg.LogLevel)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	// A client that went away must not end the daemon.
	signal.Ignore(syscall.SIGPIPE)
	return serve(ctx, cfg)
}

func usage(fl *flag.FlagSet) {
	fmt.Println("usage: berthd [FLAG ...]\n       berthd config default    print every key of the configuration, with its meaning\n\nflags:")
	fl.VisitAll(func(f *flag.Flag) {
		word, text := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Printf("  --%-20s %s\n", f.Name+" "+word, text)
	})
}

// load reads the configuration. Only a file that was asked for must be there.
func load(path string, named bool) (*config.Config, error) {
	cfg, err := config.Load(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return config.Default(), nil
	}
	return cfg, err
}

func setUpLog(level string) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})))
	routeLibraryLogs(l)
}
