package config

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxState keeps the sockets below it within the 107 bytes of a Unix address:
// <state>/s/<16 hex digits>/<name>.
const maxState = 64

// handlerName is what Kubernetes allows for a RuntimeClass's handler (a DNS label).
var handlerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

type problem struct{ key, message string }

type problems []problem

func (p *problems) add(key, format string, args ...any) {
	*p = append(*p, problem{key, fmt.Sprintf(format, args...)})
}

func (p *problems) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		p.add(key, "%q is not allowed; allowed: %s", value, strings.Join(allowed, ", "))
	}
}

func (p *problems) path(key, value string) {
	if !filepath.IsAbs(value) {
		p.add(key, "%q is not allowed; allowed: an absolute path", value)
	}
}

func (p *problems) optionalPath(key, value string) {
	if value != "" && !filepath.IsAbs(value) {
		p.add(key, "%q is not allowed; allowed: an absolute path, or \"\"", value)
	}
}

func (p *problems) between(key string, v, low, high int64) {
	if v < low || v > high {
		p.add(key, "%d is not allowed; allowed: %d to %d", v, low, high)
	}
}

// duration checks d, which must be above 0.
func (p *problems) duration(key string, d Duration) {
	switch {
	case d.bad != "":
		p.add(key, "%s is not allowed; allowed: a duration such as \"1m30s\" or \"200ms\"", d.bad)
	case d.Duration <= 0:
		p.add(key, "%q is not allowed; allowed: a duration above 0", d.String())
	}
}

// binary checks a path or the bare name of a binary.
func (p *problems) binary(key, value string) {
	if value == "" || !filepath.IsAbs(value) && !strings.HasPrefix(value, berthdDir) && strings.Contains(value, "/") {
		p.add(key, "%q is not allowed; allowed: an absolute path, a path that starts with %q, or the name of a binary", value, berthdDir)
	}
}

// fill completes what a file began: a handler that it declares gets the defaults
// of a handler.
func (c *Config) fill() {
	for name, r := range c.Runtimes {
		if r.Kind == "" {
			r.Kind = KindProcess
		}
		if r.Path == "" {
			r.Path = "runc"
		}
		if r.Options.SystemdCgroup == "" {
			r.Options.SystemdCgroup = "auto"
		}
		c.Runtimes[name] = r
	}
}

// Check tells what is wrong with values of a command line that replaced a key.
// The rest was checked when it was loaded.
func (c *Config) Check() error {
	for _, p := range c.check() {
		return &Error{File: "command line", Key: p.key, Message: p.message}
	}
	return nil
}

func (c *Config) check() problems {
	var p problems
	p.path("root", c.Root)
	p.path("state", c.State)
	if len(c.State) > maxState {
		p.add("state", "%q has %d bytes; allowed: at most %d, for the sake of socket paths", c.State, len(c.State), maxState)
	}
	if filepath.Clean(c.State) == filepath.Clean(c.Root) {
		p.add("state", "%q is the root, too; allowed: another folder", c.State)
	}
	p.oneOf("log_level", c.LogLevel, "debug", "info", "warn", "error")
	p.binary("shim", c.Shim)
	p.oneOf("cgroup_driver", c.CgroupDriver, "auto", "cgroupfs", "systemd")
	for _, d := range c.Registry.ConfigPath {
		p.path("registry.config_path", d)
	}
	c.CNI.check(&p)
	c.checkRuntimes(&p)
	c.Stream.check(&p)
	p.between("logs.max_line_size", int64(c.Logs.MaxLineSize), 256, 16<<20)
	if c.Logs.MaxSize != 0 {
		p.between("logs.max_size", c.Logs.MaxSize, int64(c.Logs.MaxLineSize), 1<<50)
	}
	p.between("logs.max_files", int64(c.Logs.MaxFiles), 2, 1000)
	p.between("logs.rate", c.Logs.Rate, 0, 1<<50)
	p.duration("timeouts.exit_drain", c.Timeouts.ExitDrain)
	p.duration("timeouts.exec_drain", c.Timeouts.ExecDrain)
	if c.Metrics.Address != "" {
		if _, port, err := net.SplitHostPort(c.Metrics.Address); err != nil || !isPort(port) {
			p.add("metrics.address", "%q is not allowed; allowed: host:port, or \"\"", c.Metrics.Address)
		}
	}
	p.oneOf("image.snapshotter", c.Image.Snapshotter, "overlayfs", "native")
	p.duration("image.stall_timeout", c.Image.StallTimeout)
	p.between("image.max_concurrent_downloads", int64(c.Image.MaxConcurrentDownloads), 1, 64)
	return p
}

func (c *CNI) check(p *problems) {
	p.path("cni.conf_dir", c.ConfDir)
	if len(c.BinDirs) == 0 {
		p.add("cni.bin_dirs", "is empty; allowed: one absolute path or more")
	}
	for _, d := range c.BinDirs {
		if !filepath.IsAbs(d) && !strings.HasPrefix(d, berthdDir) {
			p.add("cni.bin_dirs", "%q is not allowed; allowed: absolute paths, and paths that start with %q", d, berthdDir)
		}
	}
	p.between("cni.max_conf_num", int64(c.MaxConfNum), 0, 1000)
	p.duration("cni.call_timeout", c.CallTimeout)
}

func (c *Config) checkRuntimes(p *problems) {
	handlers := slices.Sorted(maps.Keys(c.Runtimes))
	for _, name := range handlers {
		r, key := c.Runtimes[name], "runtimes."+name
		if !handlerName.MatchString(name) {
			p.add(key, "%q is not allowed as a handler's name; allowed: a-z, 0-9 and -, at most 63", name)
		}
		p.oneOf(key+".kind", r.Kind, KindProcess, KindVM)
		p.binary(key+".path", r.Path)
		p.optionalPath(key+".cni_conf_dir", r.CNIConfDir)
		p.oneOf(key+".options.systemd_cgroup", r.Options.SystemdCgroup, "auto", "true", "false")
		p.optionalPath(key+".options.root", r.Options.Root)
	}
	p.oneOf("default_runtime", c.DefaultRuntime, handlers...)
}

func (s *Stream) check(p *problems) {
	if net.ParseIP(s.Address) == nil {
		p.add("stream.address", "%q is not allowed; allowed: an IP address", s.Address)
	}
	p.between("stream.port", int64(s.Port), 0, 65535)
	p.duration("stream.idle_timeout", s.IdleTimeout)
	p.duration("stream.creation_timeout", s.CreationTimeout)
	p.optionalPath("stream.cert_file", s.CertFile)
	p.optionalPath("stream.key_file", s.KeyFile)
	p.optionalPath("stream.client_ca_file", s.ClientCAFile)
	if (s.CertFile == "") != (s.KeyFile == "") {
		p.add("stream.key_file", "cert_file and key_file go together; allowed: both, or neither")
	}
	if s.ClientCAFile != "" && s.CertFile == "" {
		p.add("stream.client_ca_file", "needs cert_file and key_file")
	}
}

func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}
