// Command baton is the failover controller: `baton run` is the daemon, everything else talks to it through etcd.
package main

import (
	"os"

	"github.com/baton-ha/baton/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args)) }
