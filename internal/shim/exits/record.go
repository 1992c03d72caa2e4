// Package exits is the form in which a shim keeps a container's exit on disk
// until it is acknowledged. A record is whole or not there, it outlives the
// shim, and whoever finds it knows how the container ended.
//
// internal/shim writes records; internal/shims reads what a dead shim left.
package exits

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// Reasons that a record can carry. Else the code tells the story.
const (
	// ReasonShimLost: the shim died, and what it kept was killed.
	ReasonShimLost = "shim lost"
	// ReasonSandboxLost: what held the pod's namespaces died.
	ReasonSandboxLost = "SandboxLost"
)

// Record is one exit.
type Record struct {
	ID        string    `json:"id"`
	Pid       int       `json:"pid"`
	Code      int32     `json:"code"` // 128+n for signal n
	Signal    int32     `json:"signal,omitempty"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	At        time.Time `json:"at"`
	OOM       bool      `json:"oom,omitempty"`
	Reason    string    `json:"reason,omitempty"`
}

// BundleFile is a record's name in a bundle, under a stock containerd.
const BundleFile = "berth-exit.json"

const suffix = ".json"

// Path is where a container's exit is kept: in dir when a pod has a directory
// for exits, else in the bundle.
func Path(dir, bundle, id string) string {
	if dir != "" {
		return filepath.Join(dir, id+suffix)
	}
	return filepath.Join(bundle, BundleFile)
}

// Write puts r at path. File and directory are on disk when it returns.
func Write(path string, r *Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode exit record of %s: %w", r.ID, err)
	}
	dir, name := filepath.Dir(path), path+".new"
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o700); err == nil {
			f, err = os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("exit record of %s: %w", r.ID, err)
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(name, path)
	}
	if err != nil {
		return fmt.Errorf("exit record of %s: %w", r.ID, errors.Join(err, os.Remove(name)))
	}
	// Some systems cannot sync a directory; the file's content is safe there.
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
	return nil
}

// Read reads the record at path. NotFound when there is none, DataLoss when it
// cannot be read as one.
func Read(path string) (*Record, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("exit record %s: %w", path, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("exit record: %w", err)
	}
	r := &Record{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("exit record %s: %w: %w", path, errdefs.ErrDataLoss, err)
	}
	if r.ID == "" || r.At.IsZero() {
		return nil, fmt.Errorf("exit record %s names no container or no time: %w", path, errdefs.ErrDataLoss)
	}
	return r, nil
}

// List reads all records in a pod's directory for exits. A damaged one is left
// out and joined into the error; the others are returned with it.
func List(dir string) ([]*Record, error) {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list exit records: %w", err)
	}
	var (
		all  []*Record
		errs error
	)
	for _, e := range names {
		if !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		r, err := Read(filepath.Join(dir, e.Name()))
		switch {
		case errdefs.IsNotFound(err): // acknowledged meanwhile
		case err != nil:
			errs = errors.Join(errs, err)
		default:
			all = append(all, r)
		}
	}
	return all, errs
}

// Remove forgets an exit. That there is none is success.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget exit record: %w", err)
	}
	return nil
}
