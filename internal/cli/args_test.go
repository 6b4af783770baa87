package cli

import (
	"slices"
	"strings"
	"testing"
)

func TestReorder(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"baton history s3 --json", "baton history --json s3"},
		{"baton history s3 -c f.yaml --json", "baton history -c f.yaml --json s3"},
		{"baton -c f.yaml history s3 --json", "baton -c f.yaml history --json s3"},
		{"baton switch --to b --yes", "baton switch --to b --yes"},
		{"baton maintenance on --for 30m", "baton maintenance on --for 30m"},
		{"baton history -- --json", "baton history -- --json"},
		{"baton history s3 --config=f.yaml", "baton history --config=f.yaml s3"},
		{"baton", "baton"},
		{"baton nonsense --x", "baton nonsense --x"},
	} {
		got := Reorder(app(nil, nil).Commands, strings.Fields(tc.in))
		if want := strings.Fields(tc.want); !slices.Equal(got, want) {
			t.Errorf("%q becomes %q, want %q", tc.in, strings.Join(got, " "), tc.want)
		}
	}
}
