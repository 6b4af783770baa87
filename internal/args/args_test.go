package args

import (
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

var commands = []*cli.Command{
	{Name: "history", Flags: []cli.Flag{&cli.BoolFlag{Name: "json"}, &cli.StringFlag{Name: "config", Aliases: []string{"c"}}}},
	{Name: "switch", Flags: []cli.Flag{&cli.StringFlag{Name: "to"}, &cli.BoolFlag{Name: "yes"}}},
	{Name: "shell", SkipFlagParsing: true},
	{Name: "maintenance", Subcommands: []*cli.Command{{Name: "on", Flags: []cli.Flag{&cli.DurationFlag{Name: "for"}}}}},
}

func TestReorder(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"baton history s3 --json", "baton history --json s3"},
		{"baton history s3 -c f.yaml --json", "baton history -c f.yaml --json s3"},
		{"baton -c f.yaml history s3 --json", "baton -c f.yaml history --json s3"},
		{"baton switch --to b --yes", "baton switch --to b --yes"},
		{"baton maintenance on --for 30m", "baton maintenance on --for 30m"},
		{"baton history -- --json", "baton history -- --json"},
		{"baton history s3 --config=f.yaml", "baton history --config=f.yaml s3"},
		{"lab shell mc-a baton switch --to b", "lab shell mc-a baton switch --to b"},
		{"baton", "baton"},
		{"baton nonsense --x", "baton nonsense --x"},
	} {
		got := Reorder(commands, strings.Fields(tc.in))
		if want := strings.Fields(tc.want); !slices.Equal(got, want) {
			t.Errorf("%q becomes %q, want %q", tc.in, strings.Join(got, " "), tc.want)
		}
	}
}
