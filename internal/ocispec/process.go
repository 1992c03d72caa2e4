package ocispec

import (
	"context"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

const (
	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	terminalEnv = "TERM=xterm"
)

// process sets what the container's first process is, but for its user and
// its privileges.
func (b *builder) process(context.Context) error {
	args, err := b.args()
	if err != nil {
		return err
	}
	env, err := b.env()
	if err != nil {
		return err
	}
	cwd := b.Container.GetWorkingDir()
	if cwd == "" {
		cwd = b.image.WorkingDir
	}
	p := b.spec.Process
	p.Args = args
	p.Env = env
	p.Cwd = path.Join("/", cwd) // OCI wants it absolute; images are not always so strict
	p.Terminal = b.Container.GetTty()
	p.NoNewPrivileges = b.sc.GetNoNewPrivs()
	// Always set: a container must not inherit the daemon's, which a service
	// manager may have made the last to be killed.
	adj := max(int(b.Container.GetLinux().GetResources().GetOomScoreAdj()), b.Host.MinOOMScoreAdj)
	p.OOMScoreAdj = &adj
	return nil
}

// args merges command and args with the image's entrypoint and cmd: a command
// replaces both of the image's; args alone replace the image's cmd.
func (b *builder) args() ([]string, error) {
	command, args := b.Container.GetCommand(), b.Container.GetArgs()
	if len(command) == 0 {
		if len(args) == 0 {
			args = b.image.Cmd
		}
		// An entrypoint of one empty string is how some builders say "none".
		if e := b.image.Entrypoint; len(e) != 1 || e[0] != "" {
			command = e
		}
	}
	all := slices.Concat(command, args)
	if len(all) == 0 {
		return nil, invalid("command", "neither the container nor the image %q says what to run", b.Container.GetImage().GetImage())
	}
	return all, nil
}

// env is PATH, TERM and HOSTNAME by default, then the image's, then the
// config's; the later wins, in the place of the earlier.
func (b *builder) env() ([]string, error) {
	hostname := b.Pod.GetHostname()
	if hostname == "" {
		var err error
		if hostname, err = os.Hostname(); err != nil {
			return nil, err
		}
	}
	e := newEnvironment(3 + len(b.image.Env) + len(b.Container.GetEnvs()))
	e.set(defaultPath)
	if b.Container.GetTty() {
		e.set(terminalEnv)
	}
	e.set("HOSTNAME=" + hostname)
	for _, kv := range b.image.Env {
		e.set(kv)
	}
	for _, kv := range b.Container.GetEnvs() {
		e.set(kv.GetKey() + "=" + string(kv.GetValue()))
	}
	return e.list(), nil
}

// environment is an ordered set of variables.
type environment struct {
	at   map[string]int
	vars []string // "" = removed
}

func newEnvironment(size int) *environment {
	return &environment{at: make(map[string]int, size), vars: make([]string, 0, size)}
}

// set adds or replaces a KEY=VALUE. A KEY without "=" removes, as in
// containerd.
func (e *environment) set(kv string) {
	key, _, ok := strings.Cut(kv, "=")
	i, known := e.at[key]
	switch {
	case !ok && known:
		e.vars[i] = ""
		delete(e.at, key)
	case !ok:
	case known:
		e.vars[i] = kv
	default:
		e.at[key] = len(e.vars)
		e.vars = append(e.vars, kv)
	}
}

func (e *environment) list() []string {
	return slices.DeleteFunc(e.vars, func(s string) bool { return s == "" })
}

// ExecProcess describes a process to run in a container that was made with
// spec: with the same user, capabilities, environment, directory and labels as
// its first process. The spec is not changed, and the result shares its slices.
func ExecProcess(spec *specs.Spec, cmd []string, tty bool) *specs.Process {
	p := *spec.Process
	p.Args = cmd
	p.CommandLine = ""
	p.ConsoleSize = nil
	p.Terminal = tty
	if tty {
		e := newEnvironment(len(p.Env) + 1)
		for _, kv := range p.Env {
			e.set(kv)
		}
		e.set(terminalEnv)
		p.Env = e.list()
	}
	return &p
}
