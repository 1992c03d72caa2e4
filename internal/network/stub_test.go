package network

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stubNames are what the stub may be called.
var stubNames = []string{"stub", "portmap", "bandwidth"}

func contextOf(t testing.TB) context.Context { return context.WithoutCancel(t.Context()) }

// stub is a chained plugin that does as files in its control folder say. The file
// <VERB> holds "fail", "fail N" (N times), "hang", "crash", "flood", "babble" or "daemon"; without it
// the stub hands the previous result on. It notes each call in the file "calls".
func stub() int {
	var c struct {
		CNIVersion string          `json:"cniVersion"`
		Control    string          `json:"control"`
		Mark       string          `json:"mark"`
		Prev       json.RawMessage `json:"prevResult"`
		Runtime    json.RawMessage `json:"runtimeConfig"`
	}
	data, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stub:", err)
		return 1
	}
	verb := os.Getenv("CNI_COMMAND")
	note := fmt.Sprintf("%s %s netns=%s mark=%s prev=%t args=%s runtime=%s\n", verb, filepath.Base(os.Args[0]), os.Getenv("CNI_NETNS"), c.Mark, c.Prev != nil, os.Getenv("CNI_ARGS"), c.Runtime)
	f, err := os.OpenFile(filepath.Join(c.Control, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(note)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stub:", err)
		return 1
	}
	fail := func() int {
		fmt.Printf(`{"cniVersion":%q,"code":999,"msg":"told to fail"}`, c.CNIVersion)
		return 1
	}
	order, _ := os.ReadFile(filepath.Join(c.Control, verb))
	switch word, rest, _ := strings.Cut(strings.TrimSpace(string(order)), " "); word {
	case "fail":
		if rest == "" {
			return fail()
		}
		if n, _ := strconv.Atoi(rest); n > 0 {
			_ = os.WriteFile(filepath.Join(c.Control, verb), fmt.Appendf(nil, "fail %d", n-1), 0o644)
			return fail()
		}
	case "hang", "crash":
		child := exec.Command("sleep", "600")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return fail()
		}
		p, _ := os.OpenFile(filepath.Join(c.Control, "pids"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		_, _ = fmt.Fprintf(p, "%d\n%d\n", os.Getpid(), child.Process.Pid)
		if word == "crash" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		time.Sleep(10 * time.Minute)
	case "flood":
		line := []byte(strings.Repeat("x", 4095) + "\n")
		for range 4096 { // 16 MiB
			_, _ = os.Stderr.Write(line)
		}
		fmt.Fprintln(os.Stderr, "the last word")
		if rest == "fail" {
			return 1
		}
	case "babble":
		_, _ = os.Stdout.Write(make([]byte, maxStdout+1))
		return 0
	case "daemon": // leaves a child behind that holds its outputs
		child := exec.Command("sleep", "20")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return fail()
		}
	}
	if verb == "ADD" {
		_, _ = os.Stdout.Write(c.Prev)
	}
	return 0
}

// order tells the stub what to do at a verb; "" is nothing special.
func (r *rig) order(verb, what string) {
	r.t.Helper()
	path := filepath.Join(r.control, verb)
	err := os.WriteFile(path, []byte(what), 0o644)
	if what == "" {
		err = os.Remove(path)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// calls are the stub's notes that start with the verb.
func (r *rig) calls(verb string) []string {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.control, "calls"))
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, verb+" ") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	return got
}

// hanging are the processes of hanging stubs that live.
func (r *rig) hanging() []string {
	r.t.Helper()
	data, _ := os.ReadFile(filepath.Join(r.control, "pids"))
	var live []string
	for _, pid := range strings.Fields(string(data)) {
		if stat, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && !strings.Contains(string(stat), ") Z ") {
			live = append(live, pid)
		}
	}
	return live
}

// wait waits until ok or fails.
func (r *rig) wait(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("not within 20 s: %s", what)
		}
	}
}
