package exits

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func TestRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet", "there")
	if all, err := List(dir); err != nil || len(all) != 0 {
		t.Errorf("records of no directory: %v, %v", all, err)
	}
	want := Record{ID: "a", Pid: 3, Code: 137, Signal: 9, StartedAt: time.Unix(1, 2).UTC(), At: time.Unix(3, 4).UTC(), OOM: true, Reason: "r"}
	path := Path(dir, "/bundle", "a")
	for range 2 {
		if err := Write(path, &want); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Read(path); err != nil || *got != want {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
	// A write that was cut off, and a file that is no record.
	for name, text := range map[string]string{"b.json.new": "{", "c.json": "{", "d.json": `{"id":"d"}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Read(Path(dir, "", "c")); !errdefs.IsDataLoss(err) {
		t.Errorf("damaged record: %v, want DataLoss", err)
	}
	if all, err := List(dir); len(all) != 1 || all[0].ID != "a" || !errdefs.IsDataLoss(err) {
		t.Errorf("list: %v, %v; want the whole one and DataLoss", all, err)
	}
	for range 2 {
		if err := Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Read(path); !errdefs.IsNotFound(err) {
		t.Errorf("after remove: %v, want NotFound", err)
	}
	if got := Path("", "/bundle", "a"); got != "/bundle/"+BundleFile {
		t.Errorf("record in a bundle: %s", got)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"id":"a","at":"2024-01-02T03:04:05Z"}`))
	f.Add([]byte(`{`))
	path := filepath.Join(f.TempDir(), "r")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Read(path)
		if err == nil && (r.ID == "" || r.At.IsZero()) {
			t.Errorf("%q is no record: %+v", b, r)
		}
		if err != nil && !errdefs.IsDataLoss(err) {
			t.Errorf("%q: %v, want DataLoss", b, err)
		}
	})
}
