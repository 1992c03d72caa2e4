package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Of two daemons on one root, or on one state, the second is refused, and its
// error says which flag to change; the socket is root's alone.
func TestOneDaemonAFolder(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	open := func(root, state string) error {
		l, err := listen(path(root), path(state), path(state+".sock"))
		if l != nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}
	if err := open("root", "state"); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(path("state.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("socket has mode %v, want 0600", fi.Mode().Perm())
	}
	for _, c := range []struct{ root, state, flag string }{{"root", "other", "--root"}, {"other", "state", "--state"}} {
		err := open(c.root, c.state)
		if err == nil || !strings.Contains(err.Error(), "another berthd runs on") || !strings.HasSuffix(err.Error(), c.flag) {
			t.Errorf("second daemon on --root %s --state %s: %v, want a refusal that names %s", c.root, c.state, err, c.flag)
		}
	}
}

// What is wrong with a command line is said in one sentence.
func TestBadCommandLines(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--bogus", "not defined: -bogus (berthd --help lists the flags)"},
		{"config all", `unknown argument "config all"`},
		{"--log-level loud", `command line: log_level: "loud" is not allowed`},
		{"--root here", `command line: root: "here" is not allowed; allowed: an absolute path`},
		{"--root /x --state /x/", `command line: state: "/x/" is the root, too`},
		{"--config /nonexistent/c.toml", "read config: open /nonexistent/c.toml: no such file"},
	} {
		err := run(strings.Fields(c.args))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("berthd %s: %v, want %q", c.args, err, c.want)
		}
	}
}
