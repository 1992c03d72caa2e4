package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var rmCommand = &cli.Command{
	Name: "rm", Usage: "remove pods; their logs stay", ArgsUsage: "POD ...",
	Flags: []cli.Flag{&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "also one that is running"}},
	Action: func(c *cli.Context) error {
		if c.NArg() == 0 {
			return fmt.Errorf("usage: berth rm [--force] POD [POD ...]")
		}
		cl, err := connect(c)
		if err != nil {
			return err
		}
		for _, word := range c.Args().Slice() {
			p, k, err := cl.find(c.Context, word)
			if err != nil {
				return err
			}
			if k != nil && k.State == runtime.ContainerState_CONTAINER_RUNNING && !c.Bool("force") {
				return fmt.Errorf("pod %s is running: stop it first, or say --force", p.Metadata.GetName())
			}
			if err := cl.remove(c.Context, p.Id); err != nil {
				return err
			}
		}
		return nil
	},
}

// remove stops and removes a pod.
func (c *client) remove(ctx context.Context, id string) error {
	if _, err := c.pods.StopPodSandbox(ctx, &runtime.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err := c.pods.RemovePodSandbox(ctx, &runtime.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}
