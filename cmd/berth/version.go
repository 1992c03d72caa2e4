package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/version"
)

var versionCommand = &cli.Command{
	Name: "version", Usage: "versions of berth and berthd",
	Action: func(c *cli.Context) error {
		if err := noArgs(c); err != nil {
			return err
		}
		fmt.Println("berth  ", version.Version)
		cl, err := connect(c)
		if err != nil {
			return err
		}
		r, err := cl.pods.Version(c.Context, &runtime.VersionRequest{})
		if err != nil {
			return err
		}
		fmt.Printf("berthd  %s (CRI %s)\n", r.RuntimeVersion, r.RuntimeApiVersion)
		return nil
	},
}
