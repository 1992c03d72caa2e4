package ocispec

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// accounts gives /etc/passwd and /etc/group of a root file system, read when
// first asked for. A missing file is an empty one.
type accounts struct {
	rootfs        string
	root          *os.Root
	passwd, group []byte
	read          [2]bool
}

func (a *accounts) file(i int, name string, data *[]byte) ([]byte, error) {
	if a.read[i] {
		return *data, nil
	}
	if a.root == nil {
		root, err := os.OpenRoot(a.rootfs)
		if err != nil {
			return nil, fmt.Errorf("open root file system: %w", err)
		}
		a.root = root
	}
	d, err := readUserFile(a.root, name)
	if err != nil && !missing(err) {
		return nil, err
	}
	*data, a.read[i] = d, true
	return d, nil
}

func (a *accounts) users() ([]byte, error)  { return a.file(0, "etc/passwd", &a.passwd) }
func (a *accounts) groups() ([]byte, error) { return a.file(1, "etc/group", &a.group) }

func (a *accounts) close() {
	if a.root != nil {
		a.root.Close()
	}
}

// user sets whom the process runs as. Who that is comes from run_as_user or
// run_as_username and run_as_group, else from the image's USER (uid, uid:gid,
// name, name:group), else it is root. Names are the image's.
func (b *builder) user(context.Context) error {
	field, who, group := b.userString()
	a := &accounts{rootfs: b.Rootfs}
	defer a.close()

	u, err := lookUpUser(a, field, who, group)
	if err != nil {
		return err
	}
	var extra []uint32
	// Merge takes the groups that the image gives the user; Strict does not.
	if b.sc.GetSupplementalGroupsPolicy() == runtime.SupplementalGroupsPolicy_Merge {
		if extra, err = imageGroups(a, who); err != nil {
			return err
		}
	}
	for _, g := range b.sc.GetSupplementalGroups() {
		extra = append(extra, uint32(g))
	}
	// The primary group is in the list, as login does it; otherwise a process
	// that changes its primary group would lose it.
	extra = append(extra, u.GID)
	slices.Sort(extra)
	u.AdditionalGids = slices.Compact(extra)

	if err := b.checkMapped(field, u); err != nil {
		return err
	}
	b.spec.Process.User = *u
	return nil
}

// userString returns the user and the group as written, "" for none, and the
// field that they are from.
func (b *builder) userString() (field, user, group string) {
	const sc = "linux.security_context."
	switch {
	case b.sc.GetRunAsUsername() != "":
		field, user = sc+"run_as_username", b.sc.GetRunAsUsername()
	case b.sc.GetRunAsUser() != nil:
		field, user = sc+"run_as_user", strconv.FormatInt(b.sc.GetRunAsUser().GetValue(), 10)
	case b.image.User != "":
		field = "user of the image"
		user, group, _ = strings.Cut(b.image.User, ":")
		return field, user, group
	default:
		return "user of the image", "0", ""
	}
	if g := b.sc.GetRunAsGroup(); g != nil {
		group = strconv.FormatInt(g.GetValue(), 10)
	}
	return field, user, group
}

func lookUpUser(a *accounts, field, user, group string) (*specs.User, error) {
	var u specs.User
	uid, numeric, err := numericID(field, user)
	if err != nil {
		return nil, err
	}
	if !numeric || group == "" { // the group of a bare uid is in passwd, too
		passwd, err := a.users()
		if err != nil {
			return nil, err
		}
		entry, found := findUser(passwd, func(name string, id uint32) bool {
			if numeric {
				return id == uid
			}
			return name == user
		})
		if !found && !numeric {
			return nil, invalid(field, "user %q is not in the image's /etc/passwd", user)
		}
		if found {
			uid, u.GID = entry.uid, entry.gid
		}
	}
	u.UID = uid
	if group == "" {
		return &u, nil
	}
	gid, numeric, err := numericID(field, group)
	if err != nil {
		return nil, err
	}
	if !numeric {
		groups, err := a.groups()
		if err != nil {
			return nil, err
		}
		var found bool
		if gid, found = findGroup(groups, group); !found {
			return nil, invalid(field, "group %q is not in the image's /etc/group", group)
		}
	}
	u.GID = gid
	return &u, nil
}

// numericID tells ids from names; an integer that is no id is an error.
func numericID(field, s string) (id uint32, numeric bool, err error) {
	if id, ok := parseID(s); ok {
		return id, true, nil
	}
	if _, err := strconv.Atoi(s); err == nil || isRange(err) {
		return 0, false, invalid(field, "id %s is not between 0 and %d", s, maxID)
	}
	if s == "" {
		return 0, false, invalid(field, "empty user or group")
	}
	return 0, false, nil
}

func isRange(err error) bool {
	e, ok := err.(*strconv.NumError)
	return ok && e.Err == strconv.ErrRange
}

// imageGroups returns the groups that the image's /etc/group gives the user.
func imageGroups(a *accounts, user string) ([]uint32, error) {
	if uid, ok := parseID(user); ok {
		passwd, err := a.users()
		if err != nil {
			return nil, err
		}
		entry, found := findUser(passwd, func(_ string, id uint32) bool { return id == uid })
		if !found {
			return nil, nil
		}
		user = entry.name
	}
	groups, err := a.groups()
	if err != nil {
		return nil, err
	}
	return groupsOf(groups, user), nil
}

// checkMapped refuses ids that the user namespace does not have: the kernel
// would, much later and with less to say.
func (b *builder) checkMapped(field string, u *specs.User) error {
	if b.uids == nil {
		return nil
	}
	if !mapped(b.uids, u.UID) {
		return invalid(field, "uid %d is not mapped in the pod's user namespace", u.UID)
	}
	for _, g := range u.AdditionalGids {
		if !mapped(b.gids, g) {
			return invalid(field, "gid %d is not mapped in the pod's user namespace", g)
		}
	}
	return nil
}

// User is the user of a spec's process as ContainerStatus reports it.
func User(spec *specs.Spec) *runtime.ContainerUser {
	u := &spec.Process.User
	l := &runtime.LinuxContainerUser{Uid: int64(u.UID), Gid: int64(u.GID)}
	for _, g := range u.AdditionalGids {
		l.SupplementalGroups = append(l.SupplementalGroups, int64(g))
	}
	return &runtime.ContainerUser{Linux: l}
}
