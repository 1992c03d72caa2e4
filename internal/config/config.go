// Package config is berthd's configuration: one TOML file whose keys are all in
// default.toml, each with its meaning. It promises that a file which it accepts
// holds no unknown key and no value out of range, and that an error names the
// file, the line, the key and what is allowed.
//
// It imports nothing of ours; mains import it, and hand to other packages what
// concerns them.
package config

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// DefaultPath is where berthd looks for its configuration when no flag names a
// file.
const DefaultPath = "/etc/berth/config.toml"

// Config is what default.toml says, key by key; the meanings are there.
type Config struct {
	Root                string             `toml:"root"`
	State               string             `toml:"state"`
	LogLevel            string             `toml:"log_level"`
	Shim                string             `toml:"shim"`
	DefaultRuntime      string             `toml:"default_runtime"`
	CgroupDriver        string             `toml:"cgroup_driver"`
	RestrictOOMScoreAdj bool               `toml:"restrict_oom_score_adj"`
	Registry            Registry           `toml:"registry"`
	CNI                 CNI                `toml:"cni"`
	Runtimes            map[string]Runtime `toml:"runtimes"`
	Stream              Stream             `toml:"stream"`
	Logs                Logs               `toml:"logs"`
	Timeouts            Timeouts           `toml:"timeouts"`
	Metrics             Metrics            `toml:"metrics"`
	Image               Image              `toml:"image"`
}

// Registry says where hosts.toml folders are.
type Registry struct {
	ConfigPath []string `toml:"config_path"`
}

// CNI says how pods get a network.
type CNI struct {
	ConfDir     string   `toml:"conf_dir"`
	BinDirs     []string `toml:"bin_dirs"`
	MaxConfNum  int      `toml:"max_conf_num"`
	CallTimeout Duration `toml:"call_timeout"`
}

// Kinds of runtimes.
const (
	KindProcess = "process"
	KindVM      = "vm"
)

// Runtime is a runtime handler.
type Runtime struct {
	Kind       string         `toml:"kind"`
	Path       string         `toml:"path"`
	CNIConfDir string         `toml:"cni_conf_dir"`
	Options    RuntimeOptions `toml:"options"`
}

// RuntimeOptions are passed to the OCI runtime.
type RuntimeOptions struct {
	SystemdCgroup string `toml:"systemd_cgroup"`
	Root          string `toml:"root"`
}

// Stream says how exec, attach and port-forward are served.
type Stream struct {
	Address         string   `toml:"address"`
	Port            int      `toml:"port"`
	IdleTimeout     Duration `toml:"idle_timeout"`
	CreationTimeout Duration `toml:"creation_timeout"`
	CertFile        string   `toml:"cert_file"`
	KeyFile         string   `toml:"key_file"`
	ClientCAFile    string   `toml:"client_ca_file"`
}

// Logs bounds what containers log. Sizes are bytes, Rate is bytes a second.
type Logs struct {
	MaxLineSize int   `toml:"max_line_size"`
	MaxSize     int64 `toml:"max_size"`
	MaxFiles    int   `toml:"max_files"`
	Rate        int64 `toml:"rate"`
}

// Timeouts are bounds of waiting.
type Timeouts struct {
	ExitDrain Duration `toml:"exit_drain"`
	ExecDrain Duration `toml:"exec_drain"`
}

// Metrics says where berthd's own metrics are served.
type Metrics struct {
	Address string `toml:"address"`
}

// Image says how images are kept.
type Image struct {
	Snapshotter            string   `toml:"snapshotter"`
	StallTimeout           Duration `toml:"stall_timeout"`
	MaxConcurrentDownloads int      `toml:"max_concurrent_downloads"`
	Sync                   bool     `toml:"sync"`
	Pinned                 []string `toml:"pinned"`
	DurableRootfs          bool     `toml:"durable_rootfs"`
}

// Duration is a time.Duration that is written as "1m30s", never as a number.
type Duration struct {
	time.Duration
	bad string // what was written, quoted, when it is no duration
}

// UnmarshalText reads what time.ParseDuration reads. What it cannot read it
// leaves to the checks: they know the key.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		*d = Duration{bad: strconv.Quote(string(b))}
		return nil
	}
	*d = Duration{Duration: v}
	return nil
}

// Endpoint is the address to serve streams on, as the net package has it.
func (s *Stream) Endpoint() string { return net.JoinHostPort(s.Address, strconv.Itoa(s.Port)) }

// Socket is the path of the API socket.
func (c *Config) Socket() string { return filepath.Join(c.State, "berthd.sock") }

// Driver is the cgroup driver in use, "cgroupfs" or "systemd": what CRI's
// RuntimeConfig answers.
func (c *Config) Driver() string { return c.driver("/run/systemd/system") }

// driver takes the folder that exists where systemd is the machine's init
// (sd_booted(3)).
func (c *Config) driver(booted string) string {
	if c.CgroupDriver != "auto" {
		return c.CgroupDriver
	}
	if fi, err := os.Lstat(booted); err == nil && fi.IsDir() {
		return "systemd"
	}
	return "cgroupfs"
}

// SystemdCgroup tells whether pods of handler get their cgroups from systemd.
func (c *Config) SystemdCgroup(handler string) bool {
	switch c.Runtimes[handler].Options.SystemdCgroup {
	case "true":
		return true
	case "false":
		return false
	}
	return c.Driver() == "systemd"
}

// RuntimeRoot is where the runtime of handler keeps its state.
func (c *Config) RuntimeRoot(handler string) string {
	if r := c.Runtimes[handler].Options.Root; r != "" {
		return r
	}
	return filepath.Join(c.State, "runc")
}
