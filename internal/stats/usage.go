package stats

import (
	"bytes"
	"math"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// usage is one reading of a cgroup, of the moment at. Times are nanoseconds,
// sizes bytes; what a kernel does not tell is 0.
type usage struct {
	at time.Time

	cpu, cpuUser, cpuSystem              uint64
	periods, throttledPeriods, throttled uint64
	shares, quota, period                uint64 // quota 0: none

	memory, workingSet, rss, cache, mapped, kernel uint64
	activeFile, inactiveFile, memoryPeak           uint64
	memoryLimit, memoryReserved                    uint64 // 0: none
	failures, faults, majorFaults, oomKills        uint64
	swap, swapLimit                                uint64
	swapLimited                                    bool // swapLimit is one, and may be 0
	hasSwap                                        bool // the kernel accounts for it

	processes, threads, threadsMax uint64 // threadsMax 0: none

	devices                  devices
	cpuPSI, memoryPSI, ioPSI *psi
}

// buffers hold a cgroup file; the largest are memory.stat and io.stat.
var buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// read reads a cgroup; nil when it is not there, or went away meanwhile.
func (h *hierarchy) read(path string) *usage {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	u := &usage{at: time.Now()}
	var ok bool
	if h.unified {
		ok = u.readUnified(h, path, *b)
	} else {
		ok = u.readV1(h, path, *b)
	}
	if !ok {
		return nil
	}
	if u.memory > u.inactiveFile {
		u.workingSet = u.memory - u.inactiveFile
	}
	return u
}

func (u *usage) readUnified(h *hierarchy, path string, buf []byte) bool {
	d, ok := h.open("", path, buf)
	if !ok {
		return false
	}
	defer d.close()
	stat := d.read("cpu.stat")
	if stat == nil {
		return false // every cgroup but one that went away has it
	}
	pairs(stat, func(key []byte, v uint64) {
		switch string(key) {
		case "usage_usec":
			u.cpu = v * 1000
		case "user_usec":
			u.cpuUser = v * 1000
		case "system_usec":
			u.cpuSystem = v * 1000
		case "nr_periods":
			u.periods = v
		case "nr_throttled":
			u.throttledPeriods = v
		case "throttled_usec":
			u.throttled = v * 1000
		}
	})
	quota, period, _ := bytes.Cut(bytes.TrimSpace(d.read("cpu.max")), []byte(" "))
	u.quota, _ = parseUint(quota)
	u.period, _ = parseUint(period)
	u.shares = sharesOf(d.value("cpu.weight"))

	u.memory, u.memoryPeak = d.value("memory.current"), d.value("memory.peak")
	u.memoryLimit, u.memoryReserved = d.limit("memory.max"), d.limit("memory.low")
	u.swap, u.hasSwap = d.number("memory.swap.current")
	if v, ok := d.number("memory.swap.max"); ok { // "max" is no number
		u.swapLimit, u.swapLimited = v, true
	}
	pairs(d.read("memory.stat"), func(key []byte, v uint64) {
		switch string(key) {
		case "anon":
			u.rss = v
		case "file":
			u.cache = v
		case "file_mapped":
			u.mapped = v
		case "kernel":
			u.kernel = v
		case "inactive_file":
			u.inactiveFile = v
		case "active_file":
			u.activeFile = v
		case "pgfault":
			u.faults = v
		case "pgmajfault":
			u.majorFaults = v
		}
	})
	pairs(d.read("memory.events"), func(key []byte, v uint64) {
		switch string(key) {
		case "max":
			u.failures = v
		case "oom_kill":
			u.oomKills = v
		}
	})
	u.devices.parseIOStat(d.read("io.stat"))
	u.threads, u.threadsMax = d.value("pids.current"), d.limit("pids.max")
	u.cpuPSI = parsePSI(d.read("cpu.pressure"))
	u.memoryPSI = parsePSI(d.read("memory.pressure"))
	u.ioPSI = parsePSI(d.read("io.pressure"))
	u.processes = d.processes()
	return true
}

// sharesOf turns a cpu.weight (1 to 10000) into the v1 shares (2 to 262144) that
// runtimes derive it from, by the inverse of what runc does since 1.3.2 and crun
// since 1.23: the default of either, 100 and 1024, is that of the other.
func sharesOf(weight uint64) uint64 {
	if weight == 0 {
		return 0
	}
	// log10(weight) = (l*l + 125*l)/612 - 7/34, where l is log2(shares)
	l := (math.Sqrt(125*125+4*612*(math.Log10(float64(weight))+7.0/34)) - 125) / 2
	return uint64(math.Round(math.Exp2(l)))
}

func (u *usage) readV1(h *hierarchy, path string, buf []byte) bool {
	found := false
	if d, ok := h.open("cpuacct", path, buf); ok {
		u.cpu, found = d.number("cpuacct.usage")
		u.cpuUser, u.cpuSystem = d.value("cpuacct.usage_user"), d.value("cpuacct.usage_sys")
		d.close()
	}
	if d, ok := h.open("cpu", path, buf); ok {
		pairs(d.read("cpu.stat"), func(key []byte, v uint64) {
			switch string(key) {
			case "nr_periods":
				u.periods = v
			case "nr_throttled":
				u.throttledPeriods = v
			case "throttled_time":
				u.throttled = v
			}
		})
		// A quota of -1 is none, and no number to parseUint.
		u.quota, u.period, u.shares = d.value("cpu.cfs_quota_us"), d.value("cpu.cfs_period_us"), d.value("cpu.shares")
		d.close()
	}
	if d, ok := h.open("memory", path, buf); ok {
		u.readMemoryV1(d)
		found = true
		d.close()
	}
	if d, ok := h.open("pids", path, buf); ok {
		u.threads, u.threadsMax = d.value("pids.current"), d.limit("pids.max")
		u.processes = d.processes()
		d.close()
	}
	if d, ok := h.open("blkio", path, buf); ok {
		u.devices.parseBlkio(d.read("blkio.throttle.io_service_bytes_recursive"), true)
		u.devices.parseBlkio(d.read("blkio.throttle.io_serviced_recursive"), false)
		d.close()
	}
	return found
}

func (u *usage) readMemoryV1(d dir) {
	u.memory, u.memoryPeak = d.value("memory.usage_in_bytes"), d.value("memory.max_usage_in_bytes")
	u.memoryLimit, u.memoryReserved = d.limit("memory.limit_in_bytes"), d.limit("memory.soft_limit_in_bytes")
	u.failures = d.value("memory.failcnt")
	u.kernel = d.value("memory.kmem.usage_in_bytes")
	_, u.hasSwap = d.number("memory.memsw.usage_in_bytes")
	if both := d.limit("memory.memsw.limit_in_bytes"); both != 0 {
		u.swapLimit, u.swapLimited = left(both, u.memoryLimit), true
	}
	pairs(d.read("memory.stat"), func(key []byte, v uint64) {
		switch string(key) {
		case "total_rss":
			u.rss = v
		case "total_cache":
			u.cache = v
		case "total_mapped_file":
			u.mapped = v
		case "total_inactive_file":
			u.inactiveFile = v
		case "total_active_file":
			u.activeFile = v
		case "total_pgfault":
			u.faults = v
		case "total_pgmajfault":
			u.majorFaults = v
		case "total_swap":
			u.swap = v
		}
	})
	pairs(d.read("memory.oom_control"), func(key []byte, v uint64) {
		if string(key) == "oom_kill" {
			u.oomKills = v
		}
	})
}

// maxDepth bounds how deep cgroups that a container made for itself are looked
// into.
const maxDepth = 8

// processes counts the processes of a cgroup and of those below it.
func (d dir) processes() uint64 {
	var n uint64
	d.walk(maxDepth, func(d dir) { n += uint64(bytes.Count(d.read("cgroup.procs"), []byte("\n"))) })
	return n
}

// pids are the processes of a cgroup and of those below it.
func (d dir) pids() []int {
	var out []int
	d.walk(maxDepth, func(d dir) {
		for line := range bytes.SplitSeq(d.read("cgroup.procs"), []byte("\n")) {
			if pid, ok := parseUint(line); ok && pid > 0 {
				out = append(out, int(pid))
			}
		}
	})
	return out
}

func (d dir) walk(depth int, f func(dir)) {
	f(d)
	if depth == 0 {
		return
	}
	for _, name := range d.children() {
		fd, err := unix.Openat(d.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		sub := dir{fd, d.buf}
		sub.walk(depth-1, f)
		sub.close()
	}
}

// children are the names of the cgroups in this one. Nearly all have none, which
// the link count says for the price of one call.
func (d dir) children() []string {
	var st unix.Stat_t
	if unix.Fstat(d.fd, &st) != nil || st.Nlink == 2 {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd/" + strconv.Itoa(d.fd))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}
