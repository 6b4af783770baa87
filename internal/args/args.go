// Package args lets options stand after arguments on a command line.
package args

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// Reorder moves options that stand after a command's arguments before them: people write `history s3 --json`, and the library stops
// reading options at the first argument. Everything after a bare -- is left as it is.
func Reorder(commands []*cli.Command, args []string) []string {
	for i, a := range args {
		at := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(a) })
		if i == 0 || at < 0 {
			continue
		}
		c := commands[at]
		if c.SkipFlagParsing {
			return args // its options are its own affair
		}
		rest := args[i+1:]
		if len(c.Subcommands) > 0 {
			return append(slices.Clone(args[:i]), Reorder(c.Subcommands, args[i:])...)
		}
		return append(slices.Clone(args[:i+1]), optionsFirst(c.Flags, rest)...)
	}
	return args
}

func optionsFirst(flags []cli.Flag, args []string) []string {
	var options, plain []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			plain = append(plain, args[i:]...)
			break
		}
		if !strings.HasPrefix(a, "-") || a == "-" {
			plain = append(plain, a)
			continue
		}
		options = append(options, a)
		if takesValue(flags, a) && i+1 < len(args) {
			i++
			options = append(options, args[i])
		}
	}
	return append(options, plain...)
}

func takesValue(flags []cli.Flag, arg string) bool {
	if strings.Contains(arg, "=") {
		return false
	}
	name := strings.TrimLeft(arg, "-")
	for _, f := range flags {
		if _, isBool := f.(*cli.BoolFlag); slices.Contains(f.Names(), name) {
			return !isBool
		}
	}
	return false
}
