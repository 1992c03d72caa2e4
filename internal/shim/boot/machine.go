//go:build linux

package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupDirs are the folders of a cgroup: one on a machine with cgroup v2, one
// for each hierarchy else. Only those that exist are returned.
func cgroupDirs(path string) []string {
	path = filepath.Clean("/" + expandSlice(path))
	var st unix.Statfs_t
	if unix.Statfs(cgroupRoot, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		return existing(filepath.Join(cgroupRoot, path))
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() { // cpu and cpuacct are links to one hierarchy
			dirs = append(dirs, existing(filepath.Join(cgroupRoot, e.Name(), path))...)
		}
	}
	return dirs
}

func existing(dir string) []string {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
		return nil
	}
	return []string{dir}
}

// expandSlice turns systemd's a-b.slice into its path a.slice/a-b.slice.
func expandSlice(path string) string {
	name, ok := strings.CutSuffix(filepath.Base(path), ".slice")
	if !ok || strings.Contains(strings.Trim(path, "/"), "/") || name == "-" {
		return path
	}
	out, prefix := "", ""
	for part := range strings.SplitSeq(name, "-") {
		prefix += part
		out = filepath.Join(out, prefix+".slice")
		prefix += "-"
	}
	return out
}

// joinCgroup moves a process into a cgroup that exists.
func joinCgroup(path string, pid int) error {
	dirs := cgroupDirs(path)
	if len(dirs) == 0 {
		return fmt.Errorf("cgroup %s does not exist", path)
	}
	for _, d := range dirs {
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

func oomScore(pid int) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// setOOMScore sets the score of a process ("self" or a pid). Where it may not
// be lowered it stays.
func setOOMScore(pid string, score int) error {
	err := os.WriteFile("/proc/"+pid+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EACCES) {
		return nil
	}
	return err
}

// startTime is when a process started, in clock ticks since boot; with the pid
// it names a process for good.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold anything; state is field 3.
	i := strings.LastIndexByte(string(b), ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat cannot be read", pid)
	}
	return strconv.ParseUint(f[19], 10, 64)
}
