package cli

import (
	"github.com/urfave/cli/v2"
)

func checkCommand() *cli.Command {
	return &cli.Command{Name: "check", Usage: "look for everything that would stand in the way of a switch", Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			_, err := load(c)
			return err
		}}
}
