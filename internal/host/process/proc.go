package process

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Task flags of the kernel, include/linux/sched.h.
const (
	// exiting is PF_EXITING.
	exiting = 0x4
	// forkNoExec is PF_FORKNOEXEC: forked, and not yet another program. Both
	// runc's and crun's init carry it until they execute the user's command.
	forkNoExec = 0x40
)

// procStat are the fields of /proc/<pid>/stat that are used here, proc(5).
type procStat struct {
	state byte
	ppid  int
	flags uint64
	start uint64 // clock ticks after boot
}

func readStat(pid int) (procStat, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	// The command's name is in parentheses and may hold any byte.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return procStat{}, false
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 20 {
		return procStat{}, false
	}
	var st procStat
	st.state = f[0][0]
	st.ppid, _ = strconv.Atoi(f[1])
	st.flags, _ = strconv.ParseUint(f[6], 10, 64)
	st.start, _ = strconv.ParseUint(f[19], 10, 64)
	return st, true
}

// allPids lists the processes of this machine.
func allPids() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// descendants lists the processes that came from roots, which are not in the
// answer. A process whose parent died before this look is missed.
func descendants(roots ...int) []int {
	children := make(map[int][]int)
	for _, pid := range allPids() {
		if st, ok := readStat(pid); ok {
			children[st.ppid] = append(children[st.ppid], pid)
		}
	}
	var found []int
	queue := append([]int(nil), roots...)
	for len(queue) > 0 {
		next := children[queue[0]]
		delete(children, queue[0])
		queue = append(queue[1:], next...)
		found = append(found, next...)
	}
	return found
}

// signalPids signals those of pids that still belong to a set when their pidfd
// is open. again lists the set anew. It returns the first error other than "gone".
func signalPids(pids []int, sig int, again func() []int) (first error) {
	const chunk = 128 // pidfds open at once
	for len(pids) > 0 {
		part := pids[:min(chunk, len(pids))]
		pids = pids[len(part):]
		fds := make(map[int]int, len(part))
		for _, pid := range part {
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				fds[pid] = fd
			}
		}
		// A pid that was reused between the listing and the opening is not in
		// the second listing; one reused after the opening has a dead pidfd.
		still := make(map[int]bool, len(part))
		for _, pid := range again() {
			still[pid] = true
		}
		for pid, fd := range fds {
			if still[pid] {
				err := unix.PidfdSendSignal(fd, unix.Signal(sig), nil, 0)
				if err != nil && err != unix.ESRCH && first == nil {
					first = err
				}
			}
			_ = unix.Close(fd)
		}
	}
	return first
}

// describe says what a process that does not die is doing, for an error.
func describe(pid int) string {
	st, ok := readStat(pid)
	if !ok {
		return "process " + strconv.Itoa(pid)
	}
	s := "process " + strconv.Itoa(pid) + " in state " + string(st.state)
	if w, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/wchan"); err == nil && len(w) > 1 {
		s += " at " + string(w)
	}
	if st.state == 'D' {
		s += " (uninterruptible)"
	}
	return s
}
