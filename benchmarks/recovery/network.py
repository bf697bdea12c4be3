"""Where the processes of a cluster are, so that one of them can be cut off in silence: no connection is closed, nothing arrives.
As root each is in a network namespace of its own, and its port of the bridge is taken down; else an agent's connection to the
coordinator goes through a relay, which is stopped."""
import os
import signal
import subprocess
import sys

from processes import end, start, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))


class Loopback:
    """All on 127.0.0.1; host 0 is the coordinator's, 1, 2, ... the agents'."""
    needs_token = False

    def on(self, host, command):
        return command

    def address(self, host):
        return "127.0.0.1"

    def way_to(self, coordinator, host):
        """The coordinator's address as that host's agent is told it."""
        return coordinator

    def stop(self):
        pass


class Relays(Loopback):
    name = "a relay that is stopped"

    def __init__(self, folder):
        self.folder, self.relays = folder, {}

    def way_to(self, coordinator, host):
        if host not in self.relays:
            path = os.path.join(self.folder, f"relay{host}")
            self.relays[host] = start([sys.executable, os.path.join(HERE, "relay.py"), coordinator, path], path + ".log")
            wait_for("the relay", lambda: os.path.exists(path))
        with open(os.path.join(self.folder, f"relay{host}")) as f:
            return f.read()

    def cut(self, host, cut):
        os.kill(self.relays[host].pid, signal.SIGSTOP if cut else signal.SIGCONT)

    def stop(self):
        for relay in self.relays.values():
            end(relay, 0)


class Namespaces(Loopback):
    """A namespace lives as long as the process that holds it."""
    name = "network namespaces"
    needs_token = True  # the coordinator listens on an address that is not loopback's

    def __init__(self, folder, hosts):
        self.folder, self.holders = folder, []
        hub = self._hold()
        self._ip(hub, "link", "add", "hub", "type", "bridge")
        self._ip(hub, "link", "set", "hub", "up")
        for host in range(hosts):
            holder = self._hold()
            self._ip(hub, "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", str(holder))
            self._ip(hub, "link", "set", f"port{host}", "master", "hub")
            self._ip(hub, "link", "set", f"port{host}", "up")
            self._ip(holder, "addr", "add", self.address(host) + "/24", "dev", "eth0")
            self._ip(holder, "link", "set", "eth0", "up")
            self._ip(holder, "link", "set", "lo", "up")

    def _hold(self):
        ours = os.readlink("/proc/self/ns/net")
        holder = start(["unshare", "-n", "sleep", "86400"], os.path.join(self.folder, "namespaces.log"))
        self.holders.append(holder)
        wait_for("a network namespace", lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != ours, 10)
        return holder.pid

    def _ip(self, holder, *words):
        subprocess.run(["nsenter", "-t", str(holder), "-n", "--", "ip", *words], check=True, capture_output=True)

    def on(self, host, command):
        return ["nsenter", "-t", str(self.holders[host + 1].pid), "-n", "--", *command]

    def address(self, host):
        return f"10.78.0.{host + 1}"

    def cut(self, host, cut):
        self._ip(self.holders[0].pid, "link", "set", f"port{host}", "down" if cut else "up")

    def stop(self):
        for holder in self.holders:
            end(holder, 0)


def cuttable(folder, hosts):
    if os.geteuid() == 0:
        try:
            return Namespaces(folder, hosts)
        except (OSError, subprocess.CalledProcessError) as e:
            print(f"no network namespaces here ({e}): a relay is stopped instead", file=sys.stderr)
    return Relays(folder)
