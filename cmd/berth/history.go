package main

import (
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"berth/internal/history"
)

var rootFlag = &cli.StringFlag{Name: "root", Usage: "berthd's `FOLDER` of what outlives a reboot", Value: "/var/lib/berth", EnvVars: []string{"BERTH_ROOT"}}

var historyCommand = &cli.Command{
	Name: "history", Usage: "tell a pod's journal, with how long each step took (needs no berthd)", ArgsUsage: "POD",
	Flags: []cli.Flag{rootFlag},
	Action: func(c *cli.Context) error {
		word, err := oneArg(c)
		if err != nil {
			return err
		}
		id, err := history.Find(c.String("root"), word)
		if err != nil {
			return err
		}
		facts, damage := history.Facts(filepath.Join(c.String("root"), "journal"), id)
		if err := history.Write(os.Stdout, history.Tell(facts)); err != nil {
			return err
		}
		return damage
	},
}
