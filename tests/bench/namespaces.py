"""Network namespaces on one switch, a bridge in the first of them, for testbed.py. Each has a link
that is shaped at both ends and can be cut. Needs root, Linux and iproute2.
"""
import contextlib
import os
import signal
import subprocess
import sys


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr}{done.stdout}")


class Network:
    NET = "10.78.0.0/24"

    def __init__(self):
        if os.geteuid() != 0:
            sys.exit("network namespaces need root")
        self.spaces = {}

    def add(self, name, rate):
        """The first one holds the switch."""
        space = f"bench-{os.getpid()}-{name}"
        run("ip", "netns", "add", space)
        first = not self.spaces
        self.spaces[name] = space
        self.ip(name, "link", "set", "lo", "up")
        hub = next(iter(self.spaces))
        if first:
            self.ip(hub, "link", "add", "hub", "type", "bridge", "forward_delay", "0")
            self.ip(hub, "addr", "add", f"{self.address(hub)}/24", "dev", "hub")
            return self.ip(hub, "link", "set", "hub", "up")
        port = f"port{len(self.spaces)}"
        run("ip", "link", "add", port, "netns", self.spaces[hub], "type", "veth", "peer", "name",
            "eth0", "netns", space)
        self.ip(name, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        self.ip(hub, "link", "set", port, "master", "hub", "up")
        self.mend(name)
        for place, device in ((hub, port), (name, "eth0")):
            if rate != "none":
                run("tc", "-n", self.spaces[place], "qdisc", "add", "dev", device, "root", "tbf",
                    "rate", rate, "burst", "1mb", "latency", "50ms")

    def ip(self, name, *words):
        run("ip", "-n", self.spaces[name], *words)

    def address(self, name):
        return f"10.78.0.{1 + list(self.spaces).index(name)}"

    def cut(self, name):
        self.ip(name, "link", "set", "eth0", "down")

    def mend(self, name):
        self.ip(name, "link", "set", "eth0", "up")

    def close(self):
        """And all that runs there."""
        for space in self.spaces.values():
            found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True)
            for pid in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
