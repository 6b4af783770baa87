// Package gate is the kernel's packet gate of one IPv4 VIP.
//
// An eBPF program stands first in the path of every frame, in both directions of every interface that it is given. A frame of the VIP (IPv4 to or from it, ARP for or from it)
// passes only while the kernel's own CLOCK_BOOTTIME is before an absolute deadline, the word, which lies in a map of its own. So the host falls silent at the deadline whatever became
// of the daemon that wrote it: frozen, killed, or late. A deadline applied after it has passed opens nothing, because the kernel compares and not the daemon.
//
// Who may open the gate, for how long, and what to do when it closed is decided above. This package never reads a deadline out of a predecessor's map, never binds an address,
// never announces one, and never opens by an error: a map that cannot be read drops, and only Uninstall takes the gate away.
//
// Every method works in the network namespace of the calling thread, which must be that of the whole process.
package gate
