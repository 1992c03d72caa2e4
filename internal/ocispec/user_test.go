package ocispec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const testPasswd = `# comment
root:x:0:0:root:/root:/bin/sh
broken:x:zero:0::/:
toobig:x:4294967296:1::/:
+nis
alice:x:1000:1001:Alice:/home/alice:/bin/sh
default-user:x:1002:1002::/:/bin/sh
`

const testGroup = `root:x:0:root
bin:x:1:root,alice
alice:x:1001:alice
bad:x:-1:alice
dev:x:50000:bob,alice
ops:x:50001:default-user,
none:x:7:
`

func value(n int64) *runtime.Int64Value { return &runtime.Int64Value{Value: n} }

func TestUser(t *testing.T) {
	type sc = runtime.LinuxContainerSecurityContext
	strict := runtime.SupplementalGroupsPolicy_Strict
	for name, tc := range map[string]struct {
		sc       *sc
		image    string
		uid, gid uint32
		groups   []uint32
		err      string
	}{
		"nothing is root, with root's groups": {&sc{}, "", 0, 0, []uint32{0, 1}, ""},
		"image name":                          {&sc{}, "alice", 1000, 1001, []uint32{1, 1001, 50000}, ""},
		"image uid":                           {&sc{}, "1000", 1000, 1001, []uint32{1, 1001, 50000}, ""},
		"image uid:gid":                       {&sc{}, "1000:5", 1000, 5, []uint32{1, 5, 50000}, ""},
		"image name:group":                    {&sc{}, "alice:dev", 1000, 50000, []uint32{1, 50000}, ""},
		"image uid:group":                     {&sc{}, "77:dev", 77, 50000, []uint32{50000}, ""},
		"image name:gid":                      {&sc{}, "alice:9", 1000, 9, []uint32{1, 9, 50000}, ""},
		"unknown uid":                         {&sc{}, "77", 77, 0, []uint32{0}, ""},
		"unknown name":                        {&sc{}, "bob", 0, 0, nil, "user of the image"},
		"unknown group":                       {&sc{}, "alice:nope", 0, 0, nil, "user of the image"},
		"a broken line is no user":            {&sc{}, "broken", 0, 0, nil, "user of the image"},
		"an id out of range is no user":       {&sc{}, "toobig", 0, 0, nil, "user of the image"},
		"huge uid":                            {&sc{}, "4294967295", 0, 0, nil, "user of the image"},
		"negative uid":                        {&sc{}, "-1", 0, 0, nil, "user of the image"},
		"empty user":                          {&sc{}, ":5", 0, 0, nil, "user of the image"},
		"run_as_user wins":                    {&sc{RunAsUser: value(1002)}, "alice", 1002, 1002, []uint32{1002, 50001}, ""},
		"run_as_group":                        {&sc{RunAsUser: value(1002), RunAsGroup: value(3)}, "", 1002, 3, []uint32{3, 50001}, ""},
		"run_as_username":                     {&sc{RunAsUsername: "alice"}, "", 1000, 1001, []uint32{1, 1001, 50000}, ""},
		"run_as_username missing":             {&sc{RunAsUsername: "bob"}, "", 0, 0, nil, "run_as_username"},
		"run_as_group alone":                  {&sc{RunAsGroup: value(3)}, "", 0, 0, nil, "run_as_group"},
		"both":                                {&sc{RunAsUser: value(1), RunAsUsername: "alice"}, "", 0, 0, nil, "run_as_username"},
		"run_as_user negative":                {&sc{RunAsUser: value(-1)}, "", 0, 0, nil, "run_as_user"},
		"merge": {&sc{RunAsUser: value(1002), SupplementalGroups: []int64{1234, 1002}}, "", 1002, 1002,
			[]uint32{1002, 1234, 50001}, ""},
		"strict": {&sc{RunAsUser: value(1002), SupplementalGroups: []int64{1234}, SupplementalGroupsPolicy: strict}, "",
			1002, 1002, []uint32{1002, 1234}, ""},
		"bad group":  {&sc{SupplementalGroups: []int64{1, 1 << 31}}, "", 0, 0, nil, "supplemental_groups[1]"},
		"bad policy": {&sc{SupplementalGroupsPolicy: 7}, "", 0, 0, nil, "supplemental_groups_policy"},
	} {
		t.Run(name, func(t *testing.T) {
			r := testRequest(t)
			writeFile(t, r.Rootfs+"/etc/passwd", testPasswd)
			writeFile(t, r.Rootfs+"/etc/group", testGroup)
			r.Container.Linux.SecurityContext = tc.sc
			r.Image = &imagespec.ImageConfig{User: tc.image}
			if tc.err != "" {
				wantInvalid(t, r, tc.err)
				return
			}
			s := mustBuild(t, r)
			u := s.Process.User
			if u.UID != tc.uid || u.GID != tc.gid || !slices.Equal(u.AdditionalGids, tc.groups) {
				t.Errorf("user %d:%d %v, want %d:%d %v", u.UID, u.GID, u.AdditionalGids, tc.uid, tc.gid, tc.groups)
			}
			l := User(s).Linux
			if l.Uid != int64(tc.uid) || l.Gid != int64(tc.gid) || len(l.SupplementalGroups) != len(tc.groups) {
				t.Errorf("status %v", l)
			}
		})
	}
}

func TestUserWithoutFiles(t *testing.T) {
	r := testRequest(t)
	r.context().RunAsUser = value(1000)
	if u := mustBuild(t, r).Process.User; u.UID != 1000 || u.GID != 0 {
		t.Errorf("user %+v", u)
	}
}

// An image's symlinks are followed inside the image, and nowhere else.
func TestUserFileSymlinks(t *testing.T) {
	secret := writeFile(t, filepath.Join(t.TempDir(), "passwd"), "alice:x:666:666::/:\n")
	up := strings.Repeat("../", 30)
	for name, tc := range map[string]struct {
		link string // /etc/passwd ->
		want uint32 // 0: no such user
	}{
		"relative":        {"../usr/etc/passwd", 1000},
		"absolute":        {"/usr/etc/passwd", 1000},
		"too many dots":   {up + "usr/etc/passwd", 1000},
		"outside":         {secret, 0},
		"outside by dots": {up + strings.TrimPrefix(secret, "/"), 0},
		"dangling":        {"/nowhere", 0},
		"over a link":     {"/link/passwd", 1000},
	} {
		t.Run(name, func(t *testing.T) {
			r := testRequest(t)
			writeFile(t, r.Rootfs+"/usr/etc/passwd", testPasswd)
			writeFile(t, r.Rootfs+"/etc/group", testGroup)
			for link, to := range map[string]string{"/etc/passwd": tc.link, "/link": "/usr/etc"} {
				if err := os.Symlink(to, r.Rootfs+link); err != nil {
					t.Fatal(err)
				}
			}
			r.context().RunAsUsername = "alice"
			if tc.want == 0 {
				wantInvalid(t, r, "run_as_username")
			} else if u := mustBuild(t, r).Process.User; u.UID != tc.want {
				t.Errorf("uid %d, want %d", u.UID, tc.want)
			}
		})
	}
}

func TestUserFileIsNoFile(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"fifo":      func(p string) error { return unix.Mkfifo(p, 0o644) },
		"directory": func(p string) error { return os.Mkdir(p, 0o755) },
		"device":    func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
		"loop":      func(p string) error { return os.Symlink("/etc/passwd", p) },
		"huge":      func(p string) error { return os.WriteFile(p, nil, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			r := testRequest(t)
			if err := os.Mkdir(r.Rootfs+"/etc", 0o755); err != nil {
				t.Fatal(err)
			}
			p := r.Rootfs + "/etc/passwd"
			if err := put(p); err != nil {
				t.Fatal(err)
			}
			if name == "huge" {
				if err := os.Truncate(p, maxUserFile+1); err != nil {
					t.Fatal(err)
				}
			}
			r.context().RunAsUsername = "alice"
			if _, err := Build(t.Context(), r); err == nil {
				t.Error("no error")
			}
		})
	}
}

func FuzzPasswd(f *testing.F) {
	f.Add([]byte(testPasswd), []byte(testGroup), "alice")
	f.Add([]byte("a:b:c"), []byte(":::"), "")
	f.Fuzz(func(t *testing.T, passwd, group []byte, name string) {
		e, ok := findUser(passwd, func(n string, _ uint32) bool { return n == name })
		if ok {
			if e.name != name || e.uid > maxID || e.gid > maxID {
				t.Errorf("entry %+v for %q", e, name)
			}
			// What was found must stand in the file, as a line of its own.
			if !strings.Contains("\n"+string(passwd), name+":") {
				t.Errorf("user %q is not in the file", name)
			}
		}
		for _, g := range groupsOf(group, name) {
			if g > maxID || !strings.Contains(string(group), ":") {
				t.Errorf("group %d", g)
			}
		}
		if g, ok := findGroup(group, name); ok && g > maxID {
			t.Errorf("group %d", g)
		}
	})
}
