package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/containerd/log"
	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
)

// record is what is known of a pod's connection. It is on disk before the first
// plugin runs and until the last one gave everything back.
//
// libcni has a cache of the same kind, but fills it after the ADD: a crash or a
// failure in the middle would leave a DEL without its arguments.
type record struct {
	Boot string `json:"boot"`
	// Run is the Service that wrote this. Plugins that another one started
	// may still be running.
	Run string `json:"run"`
	// NetNS and Inode are the namespace that was connected. An inode is only
	// good for this boot.
	NetNS        string                     `json:"netns"`
	Inode        uint64                     `json:"inode"`
	Args         [][2]string                `json:"args"`
	Capabilities map[string]json.RawMessage `json:"capabilities"`
	Networks     []*attachment              `json:"networks"`
	// Result is set once every ADD has succeeded.
	Result *Result `json:"result,omitempty"`
}

// attachment is one network of a pod.
type attachment struct {
	IfName string `json:"ifName"`
	// Config is the list of plugins that were called for this pod: not always
	// the whole list that the file has, see prune.
	Config json.RawMessage `json:"config"`
	// Result is the CNI result, set once its ADD has succeeded.
	Result json.RawMessage `json:"result,omitempty"`

	list *libcni.NetworkConfigList // Config, parsed
}

// newAttachment makes one whose Config says what list.Plugins are now.
func newAttachment(list *libcni.NetworkConfigList, ifName string) (*attachment, error) {
	plugins := make([]json.RawMessage, len(list.Plugins))
	for i, p := range list.Plugins {
		plugins[i] = p.Bytes
	}
	config, err := json.Marshal(map[string]any{"name": list.Name, "cniVersion": list.CNIVersion, "plugins": plugins})
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", list.Name, err)
	}
	return &attachment{IfName: ifName, Config: config, list: list}, nil
}

// save writes the record so that a reader sees the old one or the new one. It is
// not synced: after a power cut the pod's ledger still asks for a teardown, and
// the configuration of the day is the best guess then.
func (s *Service) save(id string, r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record network of pod %s: %w", id, err)
	}
	path := s.recordPath(id)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("record network of pod %s: %w", id, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("record network of pod %s: %w", id, err)
	}
	return nil
}

// load returns the pod's record, nil if there is none. A damaged one is as good
// as none; it must not keep the pod from ever going away.
func (s *Service) load(ctx context.Context, id string) (*record, error) {
	data, err := os.ReadFile(s.recordPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read record of the network of pod %s: %w", id, err)
	}
	var r record
	err = json.Unmarshal(data, &r)
	for _, a := range r.Networks {
		if err == nil {
			a.list, err = libcni.NetworkConfFromBytes(a.Config)
		}
	}
	if err != nil {
		log.G(ctx).WithError(err).Warnf("record of the network of pod %s is damaged and ignored", id)
		return nil, nil
	}
	return &r, nil
}

// forget removes the record.
func (s *Service) forget(id string) error {
	if err := os.Remove(s.recordPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget network of pod %s: %w", id, err)
	}
	return nil
}

// netnsInode identifies the network namespace at path; 0 if there is none.
func netnsInode(path string) uint64 {
	const nsfsMagic = 0x6e736673 // NSFS_MAGIC in linux/magic.h
	var fsStat unix.Statfs_t
	var st unix.Stat_t
	if path == "" || unix.Statfs(path, &fsStat) != nil || int64(fsStat.Type) != nsfsMagic || unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// current tells whether r is about the namespace with that inode.
func (s *Service) current(r *record, inode uint64) bool {
	return inode != 0 && r.Boot == s.boot && r.Inode == inode
}
