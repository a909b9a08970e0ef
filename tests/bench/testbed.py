"""A cluster on one Linux machine, for benchmarks: espalierd and the agents of some nodes in network
namespaces on one switch, with mutual TLS. Each node has a link that is shaped both ways and can be
cut (namespaces.py), a disk and shared memory of its own, and, if told so, one core for its workers.
Used by bench_unequal.py, bench_rollouts.py, bench_recovery.py, bench_checkpoint.py and
bench_reproducible.py; job_steps.py has the jobs. Needs root. Whatever was started is ended by its
pid, and everything lies in one folder.
"""
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from namespaces import Network, run

BIN = pathlib.Path(os.environ["ESPALIER_BIN"]).resolve()
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CONTROL = "control"  # espalierd's own machine
PATIENCE = 120  # seconds
# Its own disk where all have theirs, and its own shared memory: they go with the namespace.
ENTER = 'mount --bind "$1" "$2" && mount -t tmpfs bench /dev/shm && shift 2 && exec "$@"'
WORKER = """#!/bin/sh
exec {pin} {bin}/espalier-worker {options} "$@"
"""


@dataclasses.dataclass
class Node:
    core: int = None      # the one that its workers have; None: all
    options: str = ""     # of its workers, read when one starts


class Testbed:
    def __init__(self, nodes, rate="1gbit"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
        self.nodes, self.rate = nodes, rate
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="espalier-bench-"))
        self.state = self.folder / "state"
        self.processes, self.network = [], Network()
        try:
            for name in (CONTROL, *nodes):
                self.network.add(name, rate)
            self.control = f"{self.network.address(CONTROL)}:7070"
            self.write_files()
            self.start_processes()
        except BaseException:
            self.close(keep=True)
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close(keep=kind is not None)

    # --- files and processes ------------------------------------------------------------------
    def tls(self, name):
        pki = self.folder / "pki"
        return f"{{ca: {pki}/ca.crt, certificate: {pki}/{name}.crt, key: {pki}/{name}.key}}"

    def set_options(self, name, options):
        """Of the workers that start from now on."""
        node = self.nodes[name]
        node.options = options
        pin = "" if node.core is None else f"taskset -c {node.core}"
        path = self.folder / f"worker-{name}"
        path.write_text(WORKER.format(pin=pin, bin=BIN, options=options))
        path.chmod(0o755)

    def write_files(self):
        pki = (BIN / "espalier", "pki")
        there = ("--dir", self.folder / "pki")
        run(*pki, "init", *there)
        run(*pki, "issue", CONTROL, "--role", "coordinator", "--address",
            self.network.address(CONTROL), *there)
        lines = ""
        for name, node in self.nodes.items():
            run(*pki, "issue", name, "--role", "worker", *there)
            self.set_options(name, node.options)
            lines += (f"  - {{name: {name}, address: {self.network.address(name)}, worker: "
                      f"{self.folder}/worker-{name}, tls: {self.tls(name)}}}\n")
        (self.folder / "cluster.yaml").write_text(
            f"listen: {self.control}\nmetrics_listen: 127.0.0.1:9464\nstate_dir: {self.state}\n"
            f"tls: {self.tls(CONTROL)}\nlauncher: {{network: {self.network.NET}}}\nnodes:\n{lines}")
        run(BIN / "espalier-worker", "data", "prepare", "--output", self.folder / "data",
            *sorted(REPOSITORY.glob("*/*/*.md")))

    def start(self, name, *words):
        log = (self.folder / f"{name}.log").open("ab")
        self.processes.append(subprocess.Popen(
            ["ip", "netns", "exec", self.network.spaces[name], *words], stdout=log, stderr=log,
            stdin=subprocess.DEVNULL, start_new_session=True))

    def start_processes(self):
        self.state.mkdir()
        self.start(CONTROL, BIN / "espalierd", "--cluster", self.folder / "cluster.yaml")
        self.until("espalierd answers", lambda: self.ask("jobs", fail_ok=True) is not None)
        for name in self.nodes:
            disk, pki = self.folder / "disks" / name, self.folder / "pki"
            disk.mkdir(parents=True)
            self.start(name, "bash", "-c", ENTER, "enter", disk, self.state, BIN / "espalier-agent",
                       "run", "--coordinator", self.control, "--node", name,
                       "--state-dir", self.folder / f"agent-{name}", "--data", self.folder / "data",
                       "--tls-ca", pki / "ca.crt", "--tls-cert", pki / f"{name}.crt",
                       "--tls-key", pki / f"{name}.key")
        self.until("the agents attach", lambda: all(
            node["agent"] == "ATTACHED" and not node["unusable_reason"]
            for node in self.ask("nodes")["nodes"]))

    def close(self, keep):
        self.network.close()
        for process in self.processes:
            process.kill()
            process.wait()
        if keep:
            print(f"what was logged is in {self.folder}", file=sys.stderr)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- the operator -------------------------------------------------------------------------
    def ask(self, *words, fail_ok=False):
        done = subprocess.run(self.command(*words), capture_output=True, text=True)
        if done.returncode == 0:
            return json.loads(done.stdout or "{}")
        if fail_ok:
            return None
        raise SystemExit(f"espalier {' '.join(map(str, words))}: {done.stderr}")

    def command(self, *words):
        return [BIN / "espalier", "--coordinator", self.state, "-o", "json", *words]

    def until(self, what, condition, seconds=PATIENCE, pause=0.05):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise SystemExit(f"{what}: not within {seconds} s")
            time.sleep(pause)
