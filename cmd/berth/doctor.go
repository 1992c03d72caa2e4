package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"berth/internal/doctor"
)

var doctorCommand = &cli.Command{
	Name: "doctor", Usage: "compare what pods hold with what the machine has; the exit code is 0 when they agree, 1 when not",
	Flags: []cli.Flag{
		rootFlag,
		&cli.StringFlag{Name: "state", Usage: "berthd's `FOLDER` of what does not outlive a reboot", Value: "/run/berth", EnvVars: []string{"BERTH_STATE"}},
		&cli.BoolFlag{Name: "fix", Usage: "give back what no pod holds, after asking"},
		&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"},
	},
	Action: func(c *cli.Context) error {
		if err := noArgs(c); err != nil {
			return err
		}
		if os.Geteuid() != 0 {
			return errors.New("berth doctor looks at everybody's processes and mounts: run it as root")
		}
		o := &doctor.Options{Root: c.String("root"), State: c.String("state"), Settle: time.Second}
		if o.Root == rootFlag.Value {
			o.Own = []string{"berth"} // the network that berthd makes for itself
		}
		r, err := doctor.Look(c.Context, o)
		if err != nil {
			return err
		}
		for _, n := range r.Notes {
			fmt.Println("note:", n)
		}
		for _, f := range r.Findings {
			fmt.Println(f)
		}
		left := len(r.Findings)
		if c.Bool("fix") {
			left -= fix(c, r, os.Stdin)
		}
		if left > 0 {
			return fmt.Errorf("%d of %d differences are left between %d pods and the machine", left, len(r.Findings), r.Pods)
		}
		fmt.Printf("%d pods and the machine agree\n", r.Pods)
		return nil
	},
}

// fix gives back what can be given back, asking from in first, and tells how
// much that was.
func fix(c *cli.Context, r *doctor.Report, in io.Reader) (done int) {
	can := 0
	for _, f := range r.Findings {
		if f.Fixable() {
			can++
		}
	}
	if can == 0 {
		return 0
	}
	if !c.Bool("yes") {
		fmt.Printf("give back the %d things that no pod holds? [y/N] ", can)
		answer, _ := bufio.NewReader(in).ReadString('\n')
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
			return 0
		}
	}
	for _, f := range r.Findings {
		if !f.Fixable() {
			continue
		}
		if err := f.Fix(c.Context); err != nil {
			fmt.Fprintf(os.Stderr, "berth: %s: %v\n", f, err)
			continue
		}
		fmt.Printf("given back: %s %s\n", f.Kind, f.Name)
		done++
	}
	return done
}
