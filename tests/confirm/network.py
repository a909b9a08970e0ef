"""Links between two workers: of this machine, and with --peer of another one over a cable."""
import errno
import os
import re
import socket
import subprocess
import time

import readings
from cluster import BIN, Operator
from machine import DARWIN
from report import NotHere, output_of

LINKS = 4
MPIRUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
          "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TMPDIR": "/tmp"}


def pairs_of(pid):
    """(own end, other end) of a process's established connections."""
    if not DARWIN:
        return readings.linux_peers(pid)
    words = ["lsof", "-nP", "-a", "-p", str(pid), "-iTCP", "-sTCP:ESTABLISHED", "-Fpn"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=60, check=False)
    if done.returncode == 1 and not done.stdout:  # there is none yet
        return []
    if done.returncode != 0:
        raise RuntimeError(f"lsof ended with {done.returncode}: {done.stderr[-600:]}")
    return readings.lsof_peers(done.stdout, pid)


def workers_of(mark):
    """Pids of the workers whose command line has the mark."""
    pids = []
    for line in output_of("ps", "-axww", "-o", "pid=,command=").splitlines():
        pid, command = line.split(None, 1)
        if mark in command and os.path.basename(command.split()[0]) == "espalier-worker":
            pids.append(int(pid))
    return pids


def between_two_here(cluster):
    path = cluster.file(steps=10**7, batch=8, parallel=f"links: {LINKS}", device="cpu")
    folder = cluster.folder / "two"
    folder.mkdir()
    process = subprocess.Popen(
        ["mpirun", "--bind-to", "none", "--host", "localhost:2", "-np", "2",
         str(BIN / "espalier-worker"), "--threads", "1", "--standalone", str(path)],
        cwd=folder, env={**os.environ, **MPIRUN}, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=cluster.log)
    try:
        return cluster.until("the links of two workers", lambda: counted(path), 90)
    finally:
        process.terminate()
        process.wait(timeout=60)


def counted(path):
    pids = workers_of(str(path))
    if len(pids) != 2:
        return None
    ends = [set(pairs_of(pid)) for pid in pids]
    links = sum((other, own) in ends[1] for own, other in ends[0])
    return (links >= LINKS, f"{links} connections") if links >= LINKS else None


# --- with another machine ------------------------------------------------------------------------
def way_to(address):
    """The interface by which packets go there, and its MTU."""
    if not DARWIN:
        text = output_of("ip", "-o", "route", "get", address)
        name = re.search(r" dev (\S+)", text)[1]
        return name, int(re.search(r" mtu (\d+)", output_of("ip", "-o", "link", "show", name))[1])
    name = re.search(r"interface: (\S+)", output_of("route", "-n", "get", address))[1]
    return name, int(re.search(r"mtu (\d+)", output_of("ifconfig", name))[1])


class Peer:
    """A job on this machine and `name`, which have joined the espalierd that the environment names
    (ESPALIER_COORDINATOR and what goes with it). `data`: prepared text, on both, at that path."""

    def __init__(self, cluster, name, data):
        self.operator, self.name = Operator(), name
        nodes = {node["name"]: node for node in self.operator.ask("nodes")["nodes"]}
        if name not in nodes:
            raise RuntimeError(f"espalierd knows no node '{name}'; there are: {', '.join(nodes)}")
        self.address = nodes[name]["address"]
        path = cluster.file(steps=10**7, batch=32, sequence=256, data=data, model="preset: 17m",
                            parallel=f"min_nodes: 2, max_nodes: 2, links: {LINKS}")
        self.job = self.operator.ask("submit", path)["job_id"]
        self.status = self.operator.reach(self.job, 10, seconds=600)

    def links(self):
        pids = workers_of(f"--job-id {self.job} ")
        if not pids:
            raise RuntimeError("no worker of the job on this machine")
        count = sum(other.rsplit(":", 1)[0] == self.address for pid in pids
                    for _, other in pairs_of(pid))
        if not DARWIN:
            raise NotHere("counted on macOS alone")
        name, mtu = way_to(self.address)
        return count >= LINKS, f"{count} connections to {self.address} over {name}, MTU {mtu}"

    def exchange(self):
        before = time.monotonic()
        first = int(self.operator.job(self.job)["step"])
        status = self.operator.reach(self.job, first + 10, seconds=600)
        seconds = (time.monotonic() - before) / (int(status["step"]) - first)
        last = status["ranks"][0]["last_step"]
        sent, waited = int(last["exchange_bytes"]), float(last["exchange_wait_seconds"])
        return (sent > 0, f"{sent / 1e6:.0f} MB a step of {seconds:.2f} s, of which {waited:.2f} s "
                f"are waited for it; {status['tokens_per_second']:.0f} tokens/s")

    def end(self):
        self.operator.ask("cancel", self.job)


def route(name):
    """Whether this terminal's programs may reach the peer: nothing needs to listen there."""
    node = next((one for one in Operator().ask("nodes")["nodes"] if one["name"] == name), None)
    if node is None:
        raise RuntimeError(f"espalierd knows no node '{name}'")
    address = node["address"]
    try:
        socket.create_connection((address, 7070), timeout=5).close()
    except ConnectionRefusedError:
        pass
    except OSError as error:
        if error.errno != errno.EHOSTUNREACH:
            raise
        return False, (f"{address}: {os.strerror(error.errno)}; macOS keeps the programs of this "
                       "terminal from the local network: start this from Terminal.app or over ssh, "
                       "or allow it in System Settings, Privacy & Security, Local Network")
    return True, f"{address} answers"


def check_all(report, cluster, peer, data):
    report.check("four links here", "btl_tcp_links opens four connections for a pair of ranks",
                 lambda: between_two_here(cluster))
    found = []

    def with_peer(look):
        if peer is None:
            raise NotHere("give --peer NODE and --data FOLDER")
        if look is route:
            return route(peer)
        if not found:
            found.append(Peer(cluster, peer, data))
        return getattr(found[0], look)()
    report.check("the local network", "macOS lets programs of this terminal reach the peer",
                 lambda: with_peer(route))
    report.check("four links over the cable", "Open MPI takes the cable's interface alone, 4 times",
                 lambda: with_peer("links"))
    report.check("exchange over the cable", "two Macs train together",
                 lambda: with_peer("exchange"))
    for one in found:
        one.end()
