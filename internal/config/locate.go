package config

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
)

// berthdDir stands for the folder of berthd's binary at the start of a path.
const berthdDir = "@berthd/"

// ShimPath finds the shim binary. NotFound says where it was looked for.
func (c *Config) ShimPath() (string, error) {
	return locate("shim", c.Shim)
}

// RuntimePath finds the runtime binary of a handler. NotFound says where it was
// looked for, or that there is no such handler.
func (c *Config) RuntimePath(handler string) (string, error) {
	r, ok := c.Runtimes[handler]
	if !ok {
		return "", fmt.Errorf("runtime handler %q is not configured: %w", handler, errdefs.ErrNotFound)
	}
	return locate("runtimes."+handler+".path", r.Path)
}

// Networks is how many network configs a pod gets at most.
func (c *CNI) Networks() int {
	if c.MaxConfNum == 0 {
		return math.MaxInt
	}
	return c.MaxConfNum
}

// PluginDirs are the folders of CNI plugins, as absolute paths.
func (c *CNI) PluginDirs() []string {
	var dirs []string
	for _, d := range c.BinDirs {
		rest, own := strings.CutPrefix(d, berthdDir)
		if !own {
			dirs = append(dirs, d)
			continue
		}
		if here := executableDir(); here != "" {
			dirs = append(dirs, filepath.Join(here, rest))
		}
	}
	return dirs
}

// locate finds the binary that key names: a path is taken as it is, a name is
// looked for next to berthd, then in PATH.
func locate(key, name string) (string, error) {
	if filepath.IsAbs(name) {
		if err := executable(name); err != nil {
			return "", fmt.Errorf("%s: %w: %w", key, err, errdefs.ErrNotFound)
		}
		return name, nil
	}
	if rest, own := strings.CutPrefix(name, berthdDir); own {
		return locate(key, filepath.Join(executableDir(), rest))
	}
	here := executableDir()
	if p := filepath.Join(here, name); here != "" && executable(p) == nil {
		return p, nil
	}
	if p, err := exec.LookPath(name); err == nil {
		return filepath.Abs(p)
	}
	return "", fmt.Errorf("%s: no executable %q in %s or PATH (%s): %w", key, name, here, os.Getenv("PATH"), errdefs.ErrNotFound)
}

// executableDir is the folder of the running binary, "" if that is unknown.
func executableDir() string {
	p, err := os.Executable()
	if err != nil {
		return ""
	}
	return filepath.Dir(p)
}

func executable(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", path)
	}
	return nil
}
