// Package mysql speaks to one MySQL or MariaDB instance: it reads its replication state, and takes the steps of a switch that belong
// to it (fence, cut, catch up, promote, rejoin), each idempotent, deadlined and checked right before every statement.
//
// A Conn is one connection and never more: no pool and no retry, because a statement that was sent again by itself could land in
// another term's switch. The package never decides that a step should be taken, never resets a relay log that is not applied, and
// never touches the semi-sync state of an instance on which a session waits for an acknowledgement.
package mysql
