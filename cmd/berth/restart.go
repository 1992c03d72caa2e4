package main

import (
	"encoding/json"
	"fmt"

	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/encoding/protojson"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var restartCommand = &cli.Command{
	Name: "restart", Usage: "restart a container in place, as the kubelet does: its pod stays", ArgsUsage: "POD|CONTAINER",
	Flags: []cli.Flag{&cli.Int64Flag{Name: "timeout", Usage: "`SECONDS` before it is killed", Value: 2}},
	Action: func(c *cli.Context) error {
		word, err := oneArg(c)
		if err != nil {
			return err
		}
		cl, err := connect(c)
		if err != nil {
			return err
		}
		k, err := cl.findContainer(c.Context, word)
		if err != nil {
			return err
		}
		id, err := cl.restart(c, k)
		if err != nil {
			return err
		}
		fmt.Println(id)
		return nil
	},
}

// restart stops and removes the container and starts its next attempt in the
// same pod, with the config it had.
func (c *client) restart(cc *cli.Context, k *runtime.Container) (string, error) {
	ctx := cc.Context
	p, err := c.pods.PodSandboxStatus(ctx, &runtime.PodSandboxStatusRequest{PodSandboxId: k.PodSandboxId})
	if err != nil {
		return "", err
	}
	if p.Status.State != runtime.PodSandboxState_SANDBOX_READY { // before anything is given up
		return "", fmt.Errorf("pod %s is stopped: nothing can be started in it", p.Status.Metadata.GetName())
	}
	st, err := c.pods.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: k.Id, Verbose: true})
	if err != nil {
		return "", err
	}
	cfg, err := configOf(st)
	if err != nil {
		return "", err
	}
	if _, err := c.pods.StopContainer(ctx, &runtime.StopContainerRequest{ContainerId: k.Id, Timeout: cc.Int64("timeout")}); err != nil {
		return "", err
	}
	if _, err := c.pods.RemoveContainer(ctx, &runtime.RemoveContainerRequest{ContainerId: k.Id}); err != nil {
		return "", err
	}
	cfg.Metadata.Attempt++
	cfg.LogPath = fmt.Sprintf("%d.log", cfg.Metadata.Attempt)
	return c.startIn(ctx, k.PodSandboxId, &runtime.PodSandboxConfig{Metadata: p.Status.Metadata}, cfg)
}

// configOf is the config that the container was created with.
func configOf(st *runtime.ContainerStatusResponse) (*runtime.ContainerConfig, error) {
	var info struct {
		Config json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal([]byte(st.Info["info"]), &info); err != nil {
		return nil, fmt.Errorf("berthd does not tell the container's config: %w", err)
	}
	cfg := &runtime.ContainerConfig{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(info.Config, cfg); err != nil {
		return nil, fmt.Errorf("read the container's config: %w", err)
	}
	return cfg, nil
}
