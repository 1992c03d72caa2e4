package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	nodev1 "berth/api/node/v1"
)

var importCommand = &cli.Command{
	Name: "import", Usage: "import an OCI or docker archive (- for standard input)", ArgsUsage: "ARCHIVE",
	Action: func(c *cli.Context) error {
		path, err := oneArg(c)
		if err != nil {
			return err
		}
		in := os.Stdin
		if path != "-" {
			if in, err = os.Open(path); err != nil {
				return err
			}
			defer in.Close()
		}
		cl, err := connect(c)
		if err != nil {
			return err
		}
		st, err := cl.node.Import(c.Context)
		if err != nil {
			return err
		}
		buf := make([]byte, 1<<20)
		for {
			n, rerr := in.Read(buf)
			if n > 0 {
				if err := st.Send(&nodev1.ImportRequest{Chunk: buf[:n]}); err != nil {
					break // CloseAndRecv has the reason
				}
			}
			if errors.Is(rerr, io.EOF) {
				break
			}
			if rerr != nil {
				return fmt.Errorf("read %s: %w", path, rerr)
			}
		}
		r, err := st.CloseAndRecv()
		if err != nil {
			return err
		}
		for _, i := range r.Images {
			fmt.Println(i.Id, strings.Join(i.Tags, " "))
		}
		return nil
	},
}
