package ocispec

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"regexp"
	"strings"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The paths that Kubernetes hides by default (pkg/securitycontext). The
// kubelet always sends its lists, empty ones for "procMount: Unmasked", so
// these count only for a caller that sends no security context at all.
var (
	defaultMaskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
		"/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	defaultReadonlyPaths = []string{
		"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
	}
)

func (b *builder) maskPaths() {
	l := b.spec.Linux
	switch {
	case b.privileged:
	case b.sc == nil:
		l.MaskedPaths, l.ReadonlyPaths = defaultMaskedPaths, defaultReadonlyPaths
	default:
		l.MaskedPaths, l.ReadonlyPaths = b.sc.GetMaskedPaths(), b.sc.GetReadonlyPaths()
	}
}

// appArmorDefault is the name under which the default profile is loaded.
const appArmorDefault = "berth-default"

// appArmor confines the process where the host has AppArmor. A profile that is
// asked for and cannot be had is an error.
func (b *builder) appArmor(ctx context.Context) error {
	//lint:ignore SA1019 the deprecated field is part of CRI, and older kubelets set it
	p, err := securityProfile(apparmorField, b.sc.GetApparmor(), b.sc.GetApparmorProfile())
	if err != nil {
		return err
	}
	if !b.Host.AppArmor {
		if p != nil && p.GetProfileType() != runtime.SecurityProfile_Unconfined {
			return unsupported(apparmorField, "this host has no AppArmor")
		}
		return nil
	}
	switch t := p.GetProfileType(); {
	case p != nil && t == runtime.SecurityProfile_Unconfined:
		return nil
	case p != nil && t == runtime.SecurityProfile_Localhost:
		loaded, err := appArmorLoaded(p.GetLocalhostRef())
		if err != nil {
			return fmt.Errorf("%s: list loaded profiles: %w", apparmorField, err)
		}
		if !loaded {
			return invalid(apparmorField, "profile %q is not loaded", p.GetLocalhostRef())
		}
		b.spec.Process.ApparmorProfile = p.GetLocalhostRef()
		return nil
	case b.privileged:
		return nil
	}
	// Loading runs apparmor_parser, which has no deadline of its own. It is
	// needed once after boot; a caller does not wait for it longer than it likes.
	done := make(chan error, 1)
	go func() { done <- apparmor.LoadDefaultProfile(appArmorDefault) }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: load default profile: %w", apparmorField, err)
		}
	case <-ctx.Done():
		return fmt.Errorf("%s: load default profile: %w", apparmorField, ctx.Err())
	}
	b.spec.Process.ApparmorProfile = appArmorDefault
	return nil
}

// appArmorLoaded looks a profile up in the kernel's list ("name (mode)").
func appArmorLoaded(name string) (bool, error) {
	f, err := os.Open("/sys/kernel/security/apparmor/profiles")
	if err != nil {
		return false, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if strings.HasPrefix(s.Text(), name+" (") {
			return true, nil
		}
	}
	return false, s.Err()
}

// selinuxLevel is the form of a level: a range of sensitivities and categories.
var selinuxLevel = regexp.MustCompile(`^s\d{1,2}(-s\d{1,2})?(:c\d{1,4}(\.c\d{1,4})?(,c\d{1,4}(\.c\d{1,4})?)*)?$`)

func checkSELinux(field string, o *runtime.SELinuxOption) error {
	if l := o.GetLevel(); l != "" && !selinuxLevel.MatchString(l) {
		return invalid(field+".level", "%q is not a level", l)
	}
	return nil
}

// labels sets the SELinux labels, where the host has SELinux: the container's
// options, else the pod's, else the policy's for containers. All containers of
// a pod share a level, so that they can share the pod's files.
func (b *builder) labels() error {
	if !b.Host.SELinux {
		return nil
	}
	var options []string
	if b.privileged {
		options = []string{"disable"}
	} else {
		pod := b.Pod.GetLinux().GetSecurityContext().GetSelinuxOptions()
		own := b.sc.GetSelinuxOptions()
		if own == nil {
			own = pod
		}
		level := own.GetLevel()
		if level == "" {
			level = pod.GetLevel()
		}
		if level == "" {
			level = podLevel(b.PodID)
		}
		for _, o := range [][2]string{
			{"user", own.GetUser()}, {"role", own.GetRole()}, {"type", own.GetType()}, {"level", level},
		} {
			if o[1] != "" {
				options = append(options, o[0]+":"+o[1])
			}
		}
	}
	process, mount, err := label.InitLabels(options)
	if err != nil {
		return invalid("linux.security_context.selinux_options", "%v", err)
	}
	// The library keeps a list of levels in use for those who let it choose one.
	// We never do, so nothing must stay in it.
	selinux.ReleaseLabel(process)
	b.spec.Process.SelinuxLabel = process
	b.spec.Linux.MountLabel = mount
	b.mountLabel = mount
	return nil
}

// podLevel gives a pod that names no level one of the 523,776 pairs of
// categories. It follows from the pod's id, so that it is the same for every
// container of the pod and after every restart with nothing written down.
func podLevel(podID string) string {
	h := fnv.New64a()
	h.Write([]byte(podID))
	n := h.Sum64()
	c1 := n % 1024
	c2 := (c1 + 1 + (n>>32)%1023) % 1024
	return fmt.Sprintf("s0:c%d,c%d", min(c1, c2), max(c1, c2))
}

// relabel gives a path of ours, or of the caller's, the container's label. File
// systems without labels are none the worse for it.
func relabel(path, mountLabel string) error {
	if err := label.Relabel(path, mountLabel, false); err != nil && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("relabel %q with %q: %w", path, mountLabel, err)
	}
	return nil
}
