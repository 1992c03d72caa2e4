package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var imagesCommand = &cli.Command{
	Name: "images", Usage: "list images",
	Action: func(c *cli.Context) error {
		if err := noArgs(c); err != nil {
			return err
		}
		cl, err := connect(c)
		if err != nil {
			return err
		}
		r, err := cl.images.ListImages(c.Context, &runtime.ListImagesRequest{})
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "ID\tMiB\tNAMES")
		for _, i := range r.Images {
			names := i.RepoTags
			if len(names) == 0 {
				names = i.RepoDigests
			}
			fmt.Fprintf(w, "%.12s\t%.1f\t%s\n", strings.TrimPrefix(i.Id, "sha256:"), float64(i.Size)/(1<<20), strings.Join(names, " "))
		}
		return w.Flush()
	},
}
