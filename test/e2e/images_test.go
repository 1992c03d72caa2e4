package e2e

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// reg is a registry on loopback that may want a password, and remembers who asked.
type reg struct {
	host           string
	user, password string

	mu   sync.Mutex
	seen []string
}

func newRegistry(t *testing.T, user, password string) *reg {
	t.Helper()
	r := &reg{user: user, password: password}
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		r.seen = append(r.seen, q.Method+" "+q.URL.String())
		r.mu.Unlock()
		if u, p, _ := q.BasicAuth(); r.user != "" && q.Header.Get("X-Push") == "" && (u != r.user || p != r.password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="e2e"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, q)
	}))
	t.Cleanup(s.Close)
	r.host = strings.TrimPrefix(s.URL, "http://")
	return r
}

func (r *reg) requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.seen...)
}

// pushHeader lets pushes through: only pulls are under test.
type pushHeader struct{}

func (pushHeader) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.Header.Set("X-Push", "1")
	return http.DefaultTransport.RoundTrip(q)
}

func (r *reg) push(t *testing.T, repo string, img v1.Image) string {
	t.Helper()
	ref := must[name.Reference](t)(name.ParseReference(r.host+"/"+repo, name.Insecure))
	if err := remote.Write(ref, img, remote.WithTransport(pushHeader{}), remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	return r.host + "/" + repo
}

func (n *node) pull(t *testing.T, ref string, auth *cri.AuthConfig) (string, error) {
	r, err := n.im.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}, Auth: auth})
	return r.GetImageRef(), err
}

func (n *node) imageStatus(t *testing.T, ref string) *cri.Image {
	t.Helper()
	return must[*cri.ImageStatusResponse](t)(n.im.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})).Image
}

// unique is an image that nobody else has: tests do not share what they remove.
func unique(t *testing.T) (v1.Image, string) {
	t.Helper()
	img := must[v1.Image](t)(pack(packed[baseImage], []entry{{name: "unique", data: t.Name() + runTag, mode: 0o644}}, func(c *v1.Config) {
		c.User, c.Labels = "tester", map[string]string{"test": t.Name()}
	}))
	return img, must[v1.Hash](t)(img.ConfigName()).String()
}

// An image from its pull to its removal; its ids agree everywhere.
func TestPull(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, "", "")
	img, id := unique(t)
	ref := r.push(t, "team/app:v1", img)
	got, err := shared.pull(t, ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	digest := r.host + "/team/app@" + must[v1.Hash](t)(img.Digest()).String()
	if got != id && got != digest {
		t.Errorf("pull answered %s, want %s", got, id)
	}
	for _, by := range []string{ref, digest, id, id[7:], id[7:20]} {
		i := shared.imageStatus(t, by)
		if i.GetId() != id {
			t.Errorf("by %s: %v", by, i)
		}
	}
	i := shared.imageStatus(t, ref)
	sameSet(t, "tags", i.RepoTags, []string{ref})
	sameSet(t, "digests", i.RepoDigests, []string{digest})
	if i.Size == 0 || i.Username != "tester" && i.Uid.GetValue() != 1000 {
		t.Errorf("%v", i)
	}
	v := must[*cri.ImageStatusResponse](t)(shared.im.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}, Verbose: true}))
	if !contains(v.Info["info"], `"test":"`+t.Name()) {
		t.Errorf("info: %.300v", v.Info)
	}
	l := must[*cri.ListImagesResponse](t)(shared.im.ListImages(t.Context(), &cri.ListImagesRequest{}))
	found := 0
	for _, x := range l.Images {
		if x.Id == id {
			found++
		}
	}
	if found != 1 {
		t.Errorf("it is listed %d times", found)
	}
	p := shared.pod(t)
	c := p.run("c", forever, func(c *cri.ContainerConfig) { c.Image.Image = got })
	c.want("cat /unique", t.Name()+runTag)
	if st := c.status(); st.ImageId != id || !contains(st.ImageRef, "sha256:") {
		t.Errorf("container: id %s, ref %s, want %s", st.ImageId, st.ImageRef, id)
	}
	cl := must[*cri.ListContainersResponse](t)(shared.rt.ListContainers(t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: c.id}}))
	if len(cl.Containers) != 1 || cl.Containers[0].ImageId != id {
		t.Errorf("listed container: %v", cl.Containers)
	}
	// Removed under a container, which goes on; removed twice.
	for range 2 {
		if _, err := shared.im.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: id}}); err != nil {
			t.Fatal(err)
		}
	}
	if i := shared.imageStatus(t, ref); i != nil {
		t.Errorf("removed: %v", i)
	}
	c.want("cat /unique; sha256sum /bin/probe >/dev/null && echo whole", t.Name()+runTag+"whole")
	if st := c.status(); st.ImageId != id {
		t.Errorf("its id is %s now", st.ImageId)
	}
}

func TestPullAuth(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, "me", "secret")
	img, id := unique(t)
	ref := r.push(t, "private/app:v1", img)
	if _, err := shared.pull(t, ref, nil); err == nil {
		t.Fatal("pulled without a password")
	}
	_, err := shared.pull(t, ref, &cri.AuthConfig{Username: "me", Password: "wrong"})
	if err == nil || contains(err.Error(), "wrong") {
		t.Errorf("with a wrong password: %v", err)
	}
	if _, err := shared.pull(t, ref, &cri.AuthConfig{Username: "me", Password: "secret"}); err != nil {
		t.Errorf("with the password: %v", err)
	}
	if got := shared.imageStatus(t, ref).GetId(); got != id {
		t.Errorf("id %s", got)
	}
	if _, err := shared.pull(t, ref, &cri.AuthConfig{Auth: base64.StdEncoding.EncodeToString([]byte("me:secret"))}); err != nil {
		t.Errorf("with the encoded form: %v", err)
	}
	// Whoever was allowed once does not open the door for others.
	if _, err := shared.pull(t, ref, nil); err == nil {
		t.Error("pulled again without a password")
	}
	_, err = shared.pull(t, r.host+"/private/none:v1", &cri.AuthConfig{Username: "me", Password: "secret"})
	wantCode(t, "an image that is not there", err, codes.NotFound)
}

// A mirror named in hosts.toml is asked instead of the registry, which does not
// even exist.
func TestPullMirror(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, "", "")
	img, id := unique(t)
	r.push(t, "lib/app:v1", img)
	const upstream = "registry.invalid"
	dir := shared.certs + "/" + upstream
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/hosts.toml", fmt.Sprintf("server = \"http://127.0.0.1:1\"\n[host.\"http://%s\"]\ncapabilities = [\"pull\", \"resolve\"]\n", r.host))
	ref := upstream + "/lib/app:v1"
	if _, err := shared.pull(t, ref, nil); err != nil {
		t.Fatal(err)
	}
	i := shared.imageStatus(t, ref)
	if i.GetId() != id {
		t.Fatalf("%v", i)
	}
	sameSet(t, "tags", i.RepoTags, []string{ref})
	asked := false
	for _, q := range r.requests() {
		asked = asked || contains(q, "ns="+upstream)
	}
	if !asked {
		t.Errorf("the mirror was not told the registry: %v", r.requests())
	}
}

// Many ask for the same: it is fetched once.
func TestPullTogether(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, "", "")
	img, id := unique(t)
	ref := r.push(t, "team/together:v1", img)
	pushed := len(r.requests())
	each(8, func(int) {
		if _, err := shared.pull(t, ref, nil); err != nil {
			t.Error(err)
		}
	})
	if got := shared.imageStatus(t, ref).GetId(); got != id {
		t.Errorf("id %s", got)
	}
	blobs := map[string]int{}
	for _, q := range r.requests()[pushed:] {
		if strings.HasPrefix(q, "GET") && contains(q, "/blobs/") {
			blobs[q]++
		}
	}
	for q, n := range blobs {
		if n > 1 {
			t.Errorf("%s: %d times", q, n)
		}
	}
}

func TestImageErrors(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, "", "")
	_, err := shared.pull(t, r.host+"/no/such:v1", nil)
	wantCode(t, "pull of what is not there", err, codes.NotFound, "no/such")
	_, err = shared.pull(t, "UPPER/Case::x", nil)
	wantCode(t, "pull of a bad name", err, codes.InvalidArgument)
	if i := shared.imageStatus(t, "e2e.example/none:1"); i != nil {
		t.Errorf("status of none: %v", i)
	}
	if _, err := shared.im.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: "e2e.example/none:1"}}); err != nil {
		t.Errorf("remove of none: %v", err)
	}
}

// An archive that is broken is refused, and leaves no image.
func TestImportBroken(t *testing.T) {
	t.Parallel()
	b := must[[]byte](t)(os.ReadFile(work + "/images.tar"))
	dir := hostFolder(t)
	write(t, dir+"/cut.tar", string(b[:len(b)/2]))
	if err := shared.importFile(dir + "/cut.tar"); err == nil {
		t.Error("half an archive was imported")
	}
	write(t, dir+"/text.tar", "this is no archive\n")
	if err := shared.importFile(dir + "/text.tar"); err == nil {
		t.Error("a text was imported")
	}
	if i := shared.imageStatus(t, baseImage); i.GetId() != ids[baseImage] {
		t.Errorf("the image that was there: %v", i)
	}
}
