package namespaces

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func crashRequest(dir string) *Request {
	m := []IDMapping{{HostID: 100000, Length: 65536}}
	return &Request{Dir: dir, Net: true, IPC: true, UTS: true, Hostname: "crash", User: &UserMapping{m, m}}
}

// SIGKILL at any time leaves something that Create completes and Remove removes.
func TestCrash(t *testing.T) {
	var finished int
	for i := range 40 {
		dir := filepath.Join(t.TempDir(), "ns")
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), creating+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill := time.AfterFunc(time.Duration(i)*time.Millisecond, func() { _ = cmd.Process.Kill() })
		line, _ := bufio.NewReader(out).ReadString('\n')
		kill.Stop()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if line != "" {
			finished++
			if line != "done <nil>\n" {
				t.Fatal(line)
			}
		}
		p, err := Create(t.Context(), crashRequest(dir))
		if err != nil {
			t.Fatal(err)
		}
		if got := in(t, &Paths{UTS: p.UTS}, "hostname"); got != "crash" {
			t.Errorf("hostname %q", got)
		}
		remove(t, dir)
	}
	t.Logf("%d of 40 finished before the kill", finished)
	waitNoHolders(t)
}

// No thread, descriptor, process or mount is left, and the process itself stays
// where it was.
func TestNothingLeaks(t *testing.T) {
	home := map[string]uint64{}
	for _, k := range kinds {
		home[k.name] = inode(t, "/proc/self/ns/"+k.name)
	}
	top := t.TempDir()
	m := []IDMapping{{HostID: 100000, Length: 65536}}
	round := func() {
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				r := &Request{Dir: filepath.Join(top, string(rune('a'+i))), Net: true, IPC: true, UTS: true, Hostname: "leak"}
				if i%3 == 0 {
					r.User = &UserMapping{m, m}
				}
				if i%5 == 0 {
					r.Sysctls = map[string]string{"net.ipv4.nope": "1"} // fails inside
				}
				_, err := Create(t.Context(), r)
				if (err != nil) != (i%5 == 0) {
					t.Errorf("create %d: %v", i, err)
				}
				if err := Remove(t.Context(), r.Dir); err != nil {
					t.Errorf("remove %d: %v", i, err)
				}
			})
		}
		wg.Wait()
	}
	round()
	fds := count(t, "/proc/self/fd")
	for range 3 {
		round()
	}
	if got := count(t, "/proc/self/fd"); got > fds {
		t.Errorf("%d descriptors, were %d", got, fds)
	}
	if got := mounts(t, top); len(got) != 0 {
		t.Errorf("mounts left: %q", got)
	}
	if left := count(t, top); left != 0 {
		t.Errorf("%d entries left in %s", left, top)
	}
	waitNoHolders(t)
	// Every thread that is left, the first one too, is at home.
	deadline := time.Now().Add(5 * time.Second)
	for {
		away := ""
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			for name, ino := range home {
				var st unix.Stat_t
				if err := unix.Stat("/proc/self/task/"+task.Name()+"/ns/"+name, &st); err == nil && st.Ino != ino {
					away = task.Name() + "/" + name
				}
			}
		}
		if away == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("thread %s is in another namespace", away)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func count(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// waitNoHolders fails if a holder that came from this binary lives on.
func waitNoHolders(t *testing.T) {
	t.Helper()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		var left []string
		procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, p := range procs {
			line, _ := os.ReadFile(p)
			exe, _ := os.Readlink(filepath.Dir(p) + "/exe")
			if strings.HasPrefix(string(line), holderName) && exe == self {
				left = append(left, p)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("holders left: %q", left)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
