package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// call is one verb on one network of one pod.
type call struct {
	s    *Service
	run  *runner
	verb string
	id   string
	// netns is the path, "" when it is gone.
	netns string
	rec   *record
	to    *attachment
}

// plugin runs one plugin of the chain. Everything that libcni gives a plugin is
// given here: name and version of the list, the previous result, and those
// capability arguments that the plugin declares.
func (c *call) plugin(ctx context.Context, p *libcni.PluginConfig, previous any) (types.Result, error) {
	add := map[string]any{"name": c.to.list.Name, "cniVersion": c.to.list.CNIVersion}
	if previous != nil {
		add["prevResult"] = previous
	}
	given := map[string]json.RawMessage{}
	for name, wanted := range p.Network.Capabilities {
		if value, ok := c.rec.Capabilities[name]; ok && wanted {
			given[name] = value
		}
	}
	if len(given) > 0 {
		add["runtimeConfig"] = given
	}
	conf, err := libcni.InjectConf(p, add)
	if err != nil {
		return nil, err
	}
	path, err := c.run.FindInPath(p.Network.Type, c.s.conf.BinDirs)
	if err != nil {
		return nil, err
	}
	args := &invoke.Args{
		Command:     c.verb,
		ContainerID: c.id,
		NetNS:       c.netns,
		PluginArgs:  c.rec.Args,
		IfName:      c.to.IfName,
		Path:        strings.Join(c.s.conf.BinDirs, string(filepath.ListSeparator)),
	}
	if c.verb == "ADD" {
		return invoke.ExecPluginWithResult(ctx, path, conf.Bytes, args, c.run)
	}
	return nil, invoke.ExecPluginWithoutResult(ctx, path, conf.Bytes, args, c.run)
}

// add runs the chain, each plugin on the result of the one before, and stops at
// the first failure.
func (c *call) add(ctx context.Context) (types.Result, error) {
	var result types.Result
	for _, p := range c.to.list.Plugins {
		var previous any
		if result != nil {
			previous = result
		}
		next, err := c.plugin(ctx, p, previous)
		if err != nil {
			return nil, c.failed(p, err)
		}
		result = next
	}
	return result, nil
}

// del runs the chain backwards. A plugin's failure does not stop the ones before
// it: an address must not stay reserved because a firewall rule does not go. All
// are asked again the next time; they must bear that (CNI spec, "DEL").
func (c *call) del(ctx context.Context) error {
	var previous any
	if atLeast(c.to.list.CNIVersion, "0.4.0") && c.to.Result != nil {
		previous = c.to.Result
	}
	var errs []error
	for i := len(c.to.list.Plugins) - 1; i >= 0; i-- {
		p := c.to.list.Plugins[i]
		if _, err := c.plugin(ctx, p, previous); err != nil {
			errs = append(errs, c.failed(p, err))
		}
	}
	return errors.Join(errs...)
}

func (c *call) failed(p *libcni.PluginConfig, err error) error {
	return fmt.Errorf("%s of plugin %s of network %s for pod %s: %w", c.verb, p.Network.Type, c.to.list.Name, c.id, err)
}

// atLeast compares versions; one that cannot be read is too old.
func atLeast(v, floor string) bool {
	ok, err := version.GreaterThanOrEqualTo(v, floor)
	return err == nil && ok
}

// prune leaves out plugins that would do nothing for a pod: each costs a process
// start, twice. That is known of two of the reference plugins, and only of them:
// portmap without port mappings and bandwidth without limits hand the previous
// result on, and their DEL finds nothing. The list that is left is what is
// recorded, so that DEL asks the same plugins as ADD did.
//
// A plugin stays if its file gives it work of its own (fixed rates, a
// runtimeConfig), or if it is alone.
func prune(list *libcni.NetworkConfigList, capabilities map[string]any) *libcni.NetworkConfigList {
	idle := map[string]struct {
		capability string
		own        []string
	}{
		"portmap":   {capPorts, []string{"runtimeConfig"}},
		"bandwidth": {capBandwidth, []string{"runtimeConfig", "ingressRate", "ingressBurst", "egressRate", "egressBurst"}},
	}
	left := *list
	left.Plugins = nil
	for i, p := range list.Plugins {
		known, ok := idle[p.Network.Type]
		_, asked := capabilities[known.capability]
		if !ok || i == 0 || asked && p.Network.Capabilities[known.capability] || hasKey(p.Bytes, known.own) {
			left.Plugins = append(left.Plugins, p)
		}
	}
	return &left
}

func hasKey(object []byte, keys []string) bool {
	var m map[string]json.RawMessage
	if json.Unmarshal(object, &m) != nil {
		return true
	}
	for name := range m {
		for _, k := range keys {
			if strings.EqualFold(name, k) {
				return true
			}
		}
	}
	return false
}
