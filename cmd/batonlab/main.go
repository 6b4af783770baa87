// Command batonlab runs Baton's failover laboratory: see internal/lab/cli.
package main

import (
	"os"

	"github.com/baton-ha/baton/internal/lab/cli"
)

func main() { os.Exit(cli.Main(os.Args)) }
