package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Main is TestMain's body for tests that need a box: outside, it runs the same test binary again inside one and exits with its
// code; inside, it runs the tests. A machine that cannot make a box fails the tests: they are never skipped.
func Main(m interface{ Run() int }) {
	Init()
	if Inside() {
		os.Exit(m.Run())
	}
	err := Run(context.Background(), Command{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
