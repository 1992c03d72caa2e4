package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// network is one configuration that is in force.
type network struct {
	list *libcni.NetworkConfigList
	// file is where it comes from; "" is the default network.
	file string
	// masquerade are the subnets whose traffic to elsewhere Berth itself hides
	// behind the host's address. Only the default network has any.
	masquerade []string
}

// confCache keeps what was last read of each configuration directory, under a
// print of its files' names, sizes and times. Looking at those in every call is
// cheap, and misses nothing that a watch may miss: a directory that was not there
// at first, that was moved away and made anew, or that is on a strange disk.
type confCache struct {
	mu   sync.Mutex
	dirs map[string]*confDir
}

// confDir is what a directory held.
type confDir struct {
	print    string
	networks []*network
	// bad are the files that were passed over, with the reason.
	bad []error
	// empty is set if it has no configuration at all, good or bad.
	empty bool
}

// read returns what dir holds now, at most most networks.
func (c *confCache) read(dir string, most int) (*confDir, error) {
	files, print, err := look(dir)
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration directory: %w", err)
	}
	c.mu.Lock()
	known := c.dirs[dir]
	c.mu.Unlock()
	if known != nil && known.print == print {
		return known, nil
	}
	d := parseAll(files, most)
	d.print = print
	c.mu.Lock()
	if c.dirs == nil {
		c.dirs = map[string]*confDir{}
	}
	c.dirs[dir] = d
	c.mu.Unlock()
	for _, err := range d.bad {
		log.L.WithError(err).Warn("CNI configuration passed over")
	}
	for _, n := range d.networks {
		log.L.Infof("CNI network %s from %s", n.list.Name, n.file)
	}
	return d, nil
}

// look lists the configuration files of dir in lexical order. The print also
// covers the plugin files that a list may load from a folder of its name.
func look(dir string) (files []string, print string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	var b strings.Builder
	note := func(path string) {
		if fi, err := os.Stat(path); err == nil {
			fmt.Fprintf(&b, "%s %d %d\n", path, fi.Size(), fi.ModTime().UnixNano())
		}
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			inner, _ := filepath.Glob(path + "/*.conf")
			for _, p := range inner {
				note(p)
			}
			continue
		}
		switch filepath.Ext(path) {
		case ".conflist", ".conf", ".json":
			files = append(files, path)
			note(path)
		}
	}
	return files, b.String(), nil
}

func parseAll(files []string, most int) *confDir {
	d := &confDir{empty: len(files) == 0}
	for _, f := range files {
		if len(d.networks) == most {
			break
		}
		list, err := parse(f)
		if err != nil {
			d.bad = append(d.bad, fmt.Errorf("%s: %w", f, err))
			continue
		}
		d.networks = append(d.networks, &network{list: list, file: f})
	}
	return d
}

// parse reads a list, or a single plugin's configuration as a list of one.
func parse(file string) (*libcni.NetworkConfigList, error) {
	var list *libcni.NetworkConfigList
	var err error
	if filepath.Ext(file) == ".conflist" {
		list, err = libcni.NetworkConfFromFile(file)
	} else {
		list, err = single(file)
	}
	if err != nil {
		return nil, err
	}
	if err := utils.ValidateNetworkName(list.Name); err != nil {
		return nil, fmt.Errorf("name %q: %w", list.Name, err)
	}
	if _, _, _, err := version.ParseVersion(list.CNIVersion); err != nil {
		return nil, err
	}
	return list, nil
}

// single is the old form, one plugin a file.
func single(file string) (*libcni.NetworkConfigList, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	data, err = json.Marshal(map[string]any{
		"name": p.Network.Name, "cniVersion": p.Network.CNIVersion, "plugins": []json.RawMessage{data},
	})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(data)
}

// networks are those that a pod is to be connected to: of dir if it is set, else
// of the service's own directory, else the default. FailedPrecondition when there
// is none.
//
// A directory with nothing but broken files is an error, no case for the default:
// somebody meant something else.
func (s *Service) networks(dir string) ([]*network, error) {
	own := dir == "" || dir == s.conf.ConfDir
	if own {
		dir = s.conf.ConfDir
	}
	d, err := s.confs.read(dir, s.conf.MaxConfNum)
	if err != nil {
		return nil, err
	}
	if len(d.networks) > 0 {
		return d.networks, nil
	}
	if d.empty && own && s.conf.Default != nil {
		n, err := s.defaultNetwork()
		if err != nil {
			return nil, err
		}
		return []*network{n}, nil
	}
	why := fmt.Errorf("no CNI configuration in %s", dir)
	if !d.empty {
		why = fmt.Errorf("no valid CNI configuration in %s: %w", dir, errors.Join(d.bad...))
	}
	return nil, fmt.Errorf("%w: %w", why, errdefs.ErrFailedPrecondition)
}
