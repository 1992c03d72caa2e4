package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var psCommand = &cli.Command{
	Name: "ps", Usage: "list pods and their containers",
	Flags: []cli.Flag{&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "ids of pods only"}},
	Action: func(c *cli.Context) error {
		if err := noArgs(c); err != nil {
			return err
		}
		cl, err := connect(c)
		if err != nil {
			return err
		}
		ps, err := cl.pods.ListPodSandbox(c.Context, &runtime.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		if c.Bool("quiet") {
			for _, p := range ps.Items {
				fmt.Println(p.Id)
			}
			return nil
		}
		cs, err := cl.pods.ListContainers(c.Context, &runtime.ListContainersRequest{})
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "POD\tNAME\tSTATE\tCONTAINER\tIMAGE\tSTATE\tAGE")
		for _, p := range ps.Items {
			n := 0
			for _, k := range cs.Containers {
				if k.PodSandboxId == p.Id {
					n++
					fmt.Fprintf(w, "%.12s\t%s\t%s\t%.12s\t%s\t%s\t%s\n", p.Id, p.Metadata.GetName(), state(p.State.String()),
						k.Id, cmp.Or(k.Image.GetUserSpecifiedImage(), k.Image.GetImage()), state(k.State.String()), age(k.CreatedAt))
				}
			}
			if n == 0 {
				fmt.Fprintf(w, "%.12s\t%s\t%s\t\t\t\t%s\n", p.Id, p.Metadata.GetName(), state(p.State.String()), age(p.CreatedAt))
			}
		}
		return w.Flush()
	},
}

func state(s string) string {
	return strings.ToLower(strings.TrimPrefix(strings.TrimPrefix(s, "SANDBOX_"), "CONTAINER_"))
}

func age(ns int64) string { return time.Since(time.Unix(0, ns)).Round(time.Second).String() }
