package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Setup connects the pod's network namespace. A second call for a namespace that
// is connected returns what the first one got; after one that was interrupted or
// failed it first takes back what that one left.
//
// On failure nothing is taken back here: the caller's ledger says that there may
// be something, and Teardown is its way to undo it.
//
// Errors: InvalidArgument names the field; FailedPrecondition when there is no
// usable configuration; DeadlineExceeded when a plugin did not answer.
func (s *Service) Setup(ctx context.Context, p *Pod) (*Result, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	inode := netnsInode(p.NetNS)
	if inode == 0 {
		return nil, fmt.Errorf("%q is no network namespace: %w", p.NetNS, errdefs.ErrInvalidArgument)
	}
	release, err := s.claim(ctx, p.ID)
	if err != nil {
		return nil, err
	}
	defer release()

	old, err := s.load(ctx, p.ID)
	if err != nil {
		return nil, err
	}
	if old != nil {
		if old.Result != nil && s.current(old, inode) {
			return old.Result, nil
		}
		if err := s.undo(ctx, p, old); err != nil {
			return nil, fmt.Errorf("undo an earlier try: %w", err)
		}
	}
	networks, err := s.networks(p.ConfDir)
	if err != nil {
		return nil, err
	}
	// Better now than when half of the plugins have run.
	for _, n := range networks {
		if err := s.complete(n); err != nil {
			return nil, err
		}
	}
	rec, err := s.plan(p, inode, networks, true)
	if err != nil {
		return nil, err
	}
	if err := s.save(p.ID, rec); err != nil {
		return nil, err
	}

	// The default network's masquerading belongs to no pod. It is seen to
	// beside the plugins, which take longer.
	masquerading := make(chan struct{})
	go func() {
		defer close(masquerading)
		s.masquerade(ctx, networks)
	}()
	begin := time.Now()
	err = s.addAll(ctx, p, rec)
	<-masquerading
	if err != nil {
		return nil, err
	}
	if err := s.save(p.ID, rec); err != nil {
		return nil, err
	}
	log.G(ctx).Debugf("pod %s has %v after %s", p.ID, rec.Result.IPs, time.Since(begin).Round(100*time.Microsecond))
	return rec.Result, nil
}

// plan makes the record of the pod's connection to networks; pruned leaves out
// the plugins that would have nothing to do.
func (s *Service) plan(p *Pod, inode uint64, networks []*network, pruned bool) (*record, error) {
	capabilities := s.capabilities(p)
	rec := &record{Boot: s.boot, Run: s.run, NetNS: p.NetNS, Inode: inode, Args: p.args(), Capabilities: map[string]json.RawMessage{}}
	for name, value := range capabilities {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("capability %s: %w", name, err)
		}
		rec.Capabilities[name] = data
	}
	for i, n := range networks {
		list := n.list
		if pruned {
			list = prune(list, capabilities)
		}
		a, err := newAttachment(list, fmt.Sprintf("eth%d", i))
		if err != nil {
			return nil, err
		}
		rec.Networks = append(rec.Networks, a)
	}
	return rec, nil
}

// addAll runs the ADDs of rec and fills in its results.
func (s *Service) addAll(ctx context.Context, p *Pod, rec *record) error {
	for i, a := range rec.Networks {
		c := &call{s: s, run: s.adds, verb: "ADD", id: p.ID, netns: p.NetNS, rec: rec, to: a}
		result, err := c.add(ctx)
		if err != nil {
			return err
		}
		if a.Result, err = json.Marshal(result); err != nil {
			return fmt.Errorf("result of network %s: %w", a.list.Name, err)
		}
		if i == 0 {
			if rec.Result, err = digest(result, a.Result); err != nil {
				return fmt.Errorf("result of network %s for pod %s: %w", a.list.Name, p.ID, err)
			}
		}
	}
	return nil
}

// digest picks from a CNI result what a pod's status needs.
func digest(result types.Result, raw json.RawMessage) (*Result, error) {
	r, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	d := &Result{Raw: raw}
	for _, i := range r.Interfaces {
		d.Interfaces = append(d.Interfaces, Interface{Name: i.Name, Mac: i.Mac, Sandbox: i.Sandbox})
	}
	for _, ip := range r.IPs {
		if ip.Address.IP.IsLoopback() {
			continue
		}
		// An address may also be that of an interface on the host.
		if n := ip.Interface; n != nil && *n >= 0 && *n < len(r.Interfaces) && r.Interfaces[*n].Sandbox == "" {
			continue
		}
		d.IPs = append(d.IPs, ip.Address.IP.String())
	}
	if len(d.IPs) == 0 {
		return nil, fmt.Errorf("the plugins gave no address: %w", errdefs.ErrUnknown)
	}
	return d, nil
}

// Teardown takes back all that Setup may have taken, whether that succeeded,
// failed or was cut off, and also for a pod that was never connected. With NetNS
// empty or gone the plugins are called without a namespace. The error is all
// plugins' errors joined; call again until there is none.
func (s *Service) Teardown(ctx context.Context, p *Pod) error {
	if err := p.check(); err != nil {
		return err
	}
	release, err := s.claim(ctx, p.ID)
	if err != nil {
		return err
	}
	defer release()

	rec, err := s.load(ctx, p.ID)
	if err != nil {
		return err
	}
	if rec == nil {
		if rec, err = s.guess(ctx, p); rec == nil {
			return err
		}
	}
	return s.undo(ctx, p, rec)
}

// guess makes a record for a pod that has none: its ADD never began, or the
// record was lost. Then today's configuration is asked, in full. Without any
// there is nobody to ask and nothing to take back; the same goes for a network
// whose plugins are not there, or pods that could never start would stay for ever.
func (s *Service) guess(ctx context.Context, p *Pod) (*record, error) {
	networks, err := s.networks(p.ConfDir)
	if errdefs.IsFailedPrecondition(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var there []*network
	for _, n := range networks {
		if err := s.complete(n); err != nil {
			log.G(ctx).WithError(err).Warnf("teardown of pod %s, which was never connected, leaves network %s out", p.ID, n.list.Name)
			continue
		}
		there = append(there, n)
	}
	return s.plan(p, netnsInode(p.NetNS), there, false)
}

// undo runs the DELs of rec and then forgets it.
func (s *Service) undo(ctx context.Context, p *Pod, rec *record) error {
	if rec.Run != s.run {
		// The daemon before us died, perhaps in the middle of an ADD whose
		// plugin went on. It must not take anything after the DEL.
		if err := endPlugins(ctx, p.ID); err != nil {
			return err
		}
	}
	// Never enter a namespace that is not the one that was connected: its path
	// may be somebody else's by now.
	netns := p.NetNS
	if !s.current(rec, netnsInode(netns)) {
		netns = ""
	}
	var errs []error
	for i := len(rec.Networks) - 1; i >= 0; i-- {
		c := &call{s: s, run: s.dels, verb: "DEL", id: p.ID, netns: netns, rec: rec, to: rec.Networks[i]}
		errs = append(errs, c.del(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.forget(p.ID)
}
