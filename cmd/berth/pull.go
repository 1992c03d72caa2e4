package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var pullCommand = &cli.Command{
	Name: "pull", Usage: "pull an image", ArgsUsage: "IMAGE",
	Action: func(c *cli.Context) error {
		image, err := oneArg(c)
		if err != nil {
			return err
		}
		cl, err := connect(c)
		if err != nil {
			return err
		}
		r, err := cl.images.PullImage(c.Context, &runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: image}})
		if err != nil {
			return err
		}
		fmt.Println(r.ImageRef)
		return nil
	},
}
