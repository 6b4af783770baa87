# Two words suffice: `make demo` shows a failover, `make test` proves that everything holds. Both install what is missing.
# The laboratory runs as root, in network namespaces of its own; it touches nothing of the machine and leaves nothing.

GOLANGCI = github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# The build number: `go build` stamps none where git's own checks fail, as in a clone of another user's.
COMMIT = github.com/baton-ha/baton/internal/cli.commit
ifneq ($(shell id -u),0)
SUDO = sudo
endif

# What `make test` runs in the laboratory: everything with profile steady, whose times hold on two busy cores, and then the other
# bind. Profile fast takes a stall of 300 ms for a failure, which a busy machine has by itself: `make bench` runs it, on a quiet one.
LAB_KEEPALIVED ?= all
LAB_NETLINK ?= mysql-kill switchover

.PHONY: all setup build demo test lint unit lab bench clean
all: build

setup: ## install what the laboratory needs, once
	@scripts/setup

build: ## bin/baton, bin/batonlab
	go build -ldflags "-X $(COMMIT)=$$(git rev-parse --short=12 HEAD 2>/dev/null)" -o bin/ ./cmd/baton ./cmd/batonlab

demo: setup build ## one failover, told as it happens
	@$(SUDO) timeout 120 bin/batonlab demo

test: setup lint unit lab ## everything

lint:
	go vet ./...
	timeout 1200 go run $(GOLANGCI) run ./...

unit: # tests that need namespaces box themselves, as root
	timeout 1500 go test -race -timeout 15m ./...

lab: build
	$(SUDO) timeout 1500 bin/batonlab run --profile steady --bind keepalived $(LAB_KEEPALIVED)
	$(SUDO) timeout 300 bin/batonlab run --profile steady --bind netlink $(LAB_NETLINK)

bench: setup build ## the numbers of the README, about an hour
	$(SUDO) bin/batonlab bench

clean:
	rm -rf bin report
