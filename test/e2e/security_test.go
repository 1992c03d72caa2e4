package e2e

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// privileged lets a pod have privileged containers.
func privileged(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true }

type secure = cri.LinuxContainerSecurityContext

func TestCapabilities(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, privileged)
	const show = "grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status | cut -f2 | sort -u"
	for _, c := range []struct {
		name      string
		add, drop []string
		want      string // the mask of capabilities
	}{
		{"default", nil, nil, "00000000a80425fb"},
		{"add", []string{"NET_ADMIN"}, nil, "00000000a80435fb"},
		{"drop", nil, []string{"CHOWN"}, "00000000a80425fa"},
		{"dropall", nil, []string{"ALL"}, "0000000000000000"},
		{"one", []string{"NET_BIND_SERVICE"}, []string{"ALL"}, "0000000000000400"},
		{"prefix", []string{"CAP_SYS_TIME"}, []string{"ALL"}, "0000000002000000"},
	} {
		r := p.run(c.name, forever, security(func(s *secure) { s.Capabilities = &cri.Capability{AddCapabilities: c.add, DropCapabilities: c.drop} }))
		if got := r.sh(show); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	all := p.run("all", forever, security(func(s *secure) { s.Capabilities = &cri.Capability{AddCapabilities: []string{"ALL"}} })).sh(show)
	priv := p.run("priv", forever, security(func(s *secure) { s.Privileged = true })).sh(show)
	if all != priv || all <= "00000000a80435fb" {
		t.Errorf("all: %s, privileged: %s", all, priv)
	}
}

func TestSeccomp(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, privileged)
	profile := hostFolder(t) + "/profile.json"
	write(t, profile, `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13}]}`)
	of := func(kind cri.SecurityProfile_ProfileType, ref string) containerOption {
		return security(func(s *secure) { s.Seccomp = &cri.SecurityProfile{ProfileType: kind, LocalhostRef: ref} })
	}
	const mode = "grep Seccomp: /proc/self/status | cut -f2"
	// What Docker's profile forbids to whoever lacks the capability.
	const forbidden = "unshare -U true 2>&1 && echo allowed || echo refused"
	d := p.run("default", forever, of(cri.SecurityProfile_RuntimeDefault, ""))
	d.want(mode, "2")
	if out := d.sh(forbidden); !strings.HasSuffix(out, "refused") {
		t.Errorf("default: %s", out)
	}
	d.want("mkdir /tmp/d && echo made", "made")
	u := p.run("unconfined", forever, of(cri.SecurityProfile_Unconfined, ""))
	u.want(mode, "0")
	if out := u.sh(forbidden); !strings.HasSuffix(out, "allowed") {
		t.Errorf("unconfined: %s", out)
	}
	l := p.run("localhost", forever, of(cri.SecurityProfile_Localhost, profile))
	l.want(mode, "2")
	l.want("mkdir /tmp/d 2>&1 || echo", "mkdir: can't create directory '/tmp/d': Permission denied")
	v := p.run("privileged", forever, of(cri.SecurityProfile_RuntimeDefault, ""), security(func(s *secure) { s.Privileged = true }))
	v.want(mode, "0")
	if _, err := p.tryCreate(p.config("missing", forever, of(cri.SecurityProfile_Localhost, profile+".no"))); err == nil || !strings.Contains(err.Error(), "profile.json.no") {
		t.Errorf("a missing profile: %v", err)
	}
}

func TestNoNewPrivileges(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	const show = "grep NoNewPrivs /proc/self/status | cut -f2"
	p.run("off", forever).want(show, "0")
	p.run("on", forever, security(func(s *secure) { s.NoNewPrivs = true })).want(show, "1")
}

func TestPathsAndRootfs(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever, security(func(s *secure) {
		s.MaskedPaths, s.ReadonlyPaths, s.ReadonlyRootfs = []string{"/proc/timer_list", "/proc/keys", "/etc/group"}, []string{"/proc/sys", "/proc/bus"}, true
	}))
	c.want("cat /etc/group /proc/timer_list | wc -c", "0")
	for _, s := range []string{"echo 1 > /proc/sys/kernel/domainname", "touch /x", "touch /etc/x"} {
		if r, err := c.try(5, "sh", "-c", s); err != nil || r.ExitCode == 0 || !strings.Contains(string(r.Stderr), "Read-only") {
			t.Errorf("%s: %v, %v", s, r, err)
		}
	}
	c.want("touch /dev/shm/x && echo written", "written") // not the root file system
	d := p.run("d", forever)
	d.want("test $(cat /etc/group | wc -c) -gt 0 && touch /x && echo yes", "yes")
}

func TestUsers(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	u := func(id int64) *cri.Int64Value { return &cri.Int64Value{Value: id} }
	for _, c := range []struct {
		name   string
		image  string
		s      func(*secure)
		id     string // uid:gid
		groups string // all, sorted, as id -G tells
	}{
		{"root", baseImage, func(s *secure) {}, "0:0", "0"},
		{"uid", baseImage, func(s *secure) { s.RunAsUser = u(1000) }, "1000:1000", "1000 50000 50001"},
		{"name", baseImage, func(s *secure) { s.RunAsUsername = "tester" }, "1000:1000", "1000 50000 50001"},
		{"unknown", baseImage, func(s *secure) { s.RunAsUser = u(4242) }, "4242:0", "0"},
		{"group", baseImage, func(s *secure) { s.RunAsUser, s.RunAsGroup = u(1000), u(77) }, "1000:77", "77 50000 50001"},
		{"image", oddImage, func(s *secure) {}, "1000:1000", "1000 50000 50001"},
		{"merge", baseImage, func(s *secure) { s.RunAsUser, s.SupplementalGroups = u(1000), []int64{1234} }, "1000:1000", "1000 1234 50000 50001"},
		{"strict", baseImage, func(s *secure) {
			s.RunAsUser, s.SupplementalGroups = u(1000), []int64{1234}
			s.SupplementalGroupsPolicy = cri.SupplementalGroupsPolicy_Strict
		}, "1000:1000", "1000 1234"},
	} {
		r := p.run(c.name, forever, security(c.s), func(cfg *cri.ContainerConfig) { cfg.Image.Image = c.image })
		if got := r.sh("echo $(id -u):$(id -g)"); got != c.id {
			t.Errorf("%s: %s, want %s", c.name, got, c.id)
		}
		if got := r.sh("echo $(id -G | tr ' ' '\n' | sort -n -u)"); got != c.groups {
			t.Errorf("%s: groups %s, want %s", c.name, got, c.groups)
		}
		st := r.status().GetUser().GetLinux()
		if st == nil || itoa(int(st.Uid))+":"+itoa(int(st.Gid)) != c.id {
			t.Errorf("%s: status has user %v", c.name, st)
		}
	}
	_, err := p.tryCreate(p.config("nobody", forever, security(func(s *secure) { s.RunAsUsername = "no-such-user" })))
	if err == nil || !strings.Contains(err.Error(), "no-such-user") {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestPrivileged(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, privileged)
	c := p.run("c", forever, security(func(s *secure) { s.Privileged = true }))
	c.want("test -c /dev/kmsg && echo devices", "devices")
	c.want("mkdir /m && mount -t tmpfs none /m && echo mounted", "mounted")
	if out := c.sh("grep ' /sys ' /proc/mounts"); !strings.Contains(out, " rw,") {
		t.Errorf("/sys: %s", out)
	}
	d := p.run("d", forever)
	if r, err := d.try(5, "sh", "-c", "mkdir /m; mount -t tmpfs none /m"); err != nil || r.ExitCode == 0 {
		t.Errorf("its unprivileged sibling may mount: %v, %v", r, err)
	}
	q := shared.pod(t)
	_, err := q.tryCreate(q.config("c", forever, security(func(s *secure) { s.Privileged = true })))
	wantCode(t, "in a pod that is not", err, codes.InvalidArgument, "privileged")
}

func TestProcessSettings(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("odd", nil, func(c *cri.ContainerConfig) { c.Image.Image = oddImage })
	c.waitLog("ready")
	c.stop(0)
	if out := c.output(); !strings.HasPrefix(out, "default\n/work\n1000\nfrom the image\nready\n") {
		t.Errorf("the image's command: %q", out)
	}
	c = p.run("args", nil, func(c *cri.ContainerConfig) { c.Image.Image, c.Args = oddImage, []string{"echo mine"} })
	if out := c.output(); out != "mine\n" {
		t.Errorf("the image's entrypoint with arguments: %q", out)
	}
	c = p.run("dir", []string{"pwd"}, func(c *cri.ContainerConfig) { c.WorkingDir = "/new/dir" })
	if out := c.output(); out != "/new/dir\n" {
		t.Errorf("working dir: %q", out)
	}
	// oom_score_adj is what was asked for, or the daemon's own where that is all
	// that the machine allows.
	c = p.run("oom", forever, func(c *cri.ContainerConfig) { c.Linux.Resources.OomScoreAdj = 999 })
	c.want("cat /proc/1/oom_score_adj", "999")
}
