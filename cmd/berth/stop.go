package main

import (
	"github.com/urfave/cli/v2"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var stopCommand = &cli.Command{
	Name: "stop", Usage: "stop a pod", ArgsUsage: "POD|CONTAINER",
	Flags: []cli.Flag{&cli.Int64Flag{Name: "timeout", Usage: "`SECONDS` before it is killed", Value: 10}},
	Action: func(c *cli.Context) error {
		word, err := oneArg(c)
		if err != nil {
			return err
		}
		cl, err := connect(c)
		if err != nil {
			return err
		}
		p, k, err := cl.find(c.Context, word)
		if err != nil {
			return err
		}
		if k != nil {
			if _, err := cl.pods.StopContainer(c.Context, &runtime.StopContainerRequest{ContainerId: k.Id, Timeout: c.Int64("timeout")}); err != nil {
				return err
			}
		}
		_, err = cl.pods.StopPodSandbox(c.Context, &runtime.StopPodSandboxRequest{PodSandboxId: p.Id})
		return err
	},
}
