"""espalierd and the agents of three machines (machines.py) that have joined it over mutual TLS, as
chaos.py disturbs them. What ends by itself is started again a second later, as a service manager
does. Everything lives in one folder.
"""
import ctypes
import http.client
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

from machines import Machine, Switch
from world import BIN, Broken, Operator

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CLOCK_SHIFT = pathlib.Path(os.environ.get("ESPALIER_CLOCK_SHIFT_LIBRARY",
                                          BIN / "../tests/libclock_shift.so")).resolve()
NODES = ("oak", "elm", "ash")
CONTROL = "control"  # espalierd's own machine
METRICS = ("127.0.0.1", 9464)
CLONE_NEWNET = 0x40000000
CLUSTER = """
listen: ADDRESS:7070
metrics_listen: 127.0.0.1:9464
state_dir: FOLDER/state/espalierd
tls:
  {ca: FOLDER/pki/ca.crt, certificate: FOLDER/pki/coordinator.crt, key: FOLDER/pki/coordinator.key}
launcher: {worker: FOLDER/worker, network: 10.79.0.0/24}
nodes: []
"""
# An agent passes no LD_PRELOAD on, nor may it.
WORKER = """#!/bin/sh
ESPALIER_CLOCK_SHIFT=FOLDER/state/clock LD_PRELOAD=LIBRARY exec BIN/espalier-worker "$@"
"""


class ChaosWorld(Operator):
    pause = 0.25

    def __init__(self):
        for program in (BIN / "espalierd", BIN / "espalier-worker", CLOCK_SHIFT):
            if not program.exists():
                raise Broken(f"no {program}; build it first: deploy/dev build")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="chaos-"))
        self.machines, self.processes, self.switch = {}, {}, None
        self.down = {}  # name: since when a process is not there, or None while a fault has it
        self.ended = []  # what ended by itself
        try:
            self.switch = Switch()
            for number, name in enumerate((CONTROL, *NODES), start=1):
                self.machines[name] = Machine(self.switch, self.folder, name, f"10.79.0.{number}")
            self.state = self.machines[CONTROL].disk / "espalierd"  # its socket is there
            self.prepare()
            self.start(CONTROL)
            self.until("espalierd answers", self.answers)
            for node in NODES:
                self.join(node)
            self.until("the agents attach", self.all_attached)
        except BaseException:
            self.close(keep=True)
            raise

    def prepare(self):
        pki = [BIN / "espalier", "pki"]
        there = ["--dir", self.folder / "pki"]
        address = self.machines[CONTROL].address
        self.call(*pki, "init", *there)
        self.call(*pki, "issue", "coordinator", "--role", "coordinator", "--address", address,
                  *there)
        self.call(BIN / "espalier-worker", "data", "prepare", "--output", self.folder / "data",
                  *sorted(REPOSITORY.glob("*/*/*.md")))
        self.write("cluster.yaml", CLUSTER.replace("ADDRESS", address))
        self.write("worker", WORKER).chmod(0o755)

    def write(self, name, text):
        for word, value in (("FOLDER", self.folder), ("LIBRARY", CLOCK_SHIFT), ("BIN", BIN)):
            text = text.replace(word, str(value))
        path = self.folder / name
        path.write_text(text)
        return path

    def call(self, *words):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            raise Broken(f"{' '.join(map(str, words))}: {done.stderr}{done.stdout}")

    # --- processes ----------------------------------------------------------------------------
    def start(self, name):
        """espalierd, or the agent of a node."""
        machine = self.machines[name]
        words = [BIN / "espalierd", "--cluster", self.folder / "cluster.yaml"]
        if name != CONTROL:
            words = [BIN / "espalier-agent", "run", "--state-dir", machine.mounted / "agent",
                     "--data", self.folder / "data", "--condition", machine.mounted / "condition"]
        self.processes[name] = machine.start(
            words, self.folder / f"{name}.log", LD_PRELOAD=str(CLOCK_SHIFT),
            ESPALIER_CLOCK_SHIFT=str(machine.mounted / "clock"))
        self.down.pop(name, None)

    def kill(self, name):
        """Until it is started again."""
        self.down[name] = None
        self.processes[name].kill()
        self.processes[name].wait()

    def keep_up(self):
        """To be called now and then."""
        for name, process in list(self.processes.items()):
            if process.poll() is None or self.down.get(name, 0) is None:
                continue
            if name not in self.down:
                self.down[name] = time.monotonic()
                self.ended.append(f"{name} with {process.returncode}")
            elif time.monotonic() > self.down[name] + 1:
                self.start(name)

    def join(self, node):
        machine = self.machines[node]
        line = self.ask("nodes", "add", node, "--address", machine.address)["command"]
        log = self.folder / f"{node}.log"
        words = [BIN / "espalier-agent", *line.split()[1:], "--only", "--state-dir",
                 machine.mounted / "agent"]
        if machine.start(words, log).wait() != 0:
            raise Broken(f"{node} could not join: {log.read_text()}")
        self.start(node)

    def answers(self):
        return self.ask("jobs", fail_ok=True) is not None

    def all_attached(self):
        nodes = self.ask("nodes")["nodes"]
        return len(nodes) == len(NODES) and all(node["agent"] == "ATTACHED" for node in nodes)

    def strays(self):
        """What lives on the machines beside espalierd and the agents."""
        own = {process.pid for process in self.processes.values()}
        return [pid for machine in self.machines.values()
                for pid in machine.processes() if pid not in own]

    # --- what espalierd tells -----------------------------------------------------------------
    def enter_control(self):
        """The calling thread is on espalierd's machine from now on."""
        with open(f"/run/netns/{self.machines[CONTROL].space}", encoding="ascii") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET) != 0:
                raise Broken(f"setns: {os.strerror(ctypes.get_errno())}")

    def metrics(self):
        """Text of /metrics, on a thread that has entered; None while nobody answers."""
        connection = http.client.HTTPConnection(*METRICS, timeout=2)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def close(self, keep):
        kept = self.folder / "kept" if keep else None
        if keep:
            kept.mkdir(exist_ok=True)
        for machine in self.machines.values():
            machine.close(kept)
        for process in self.processes.values():
            process.wait()
        if self.switch is not None:
            self.switch.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


class Thread(threading.Thread):
    """A loop until it is ended; what it raises is raised there."""

    def __init__(self, turn, enter, pause):
        super().__init__(daemon=True)
        self.turn, self.enter, self.interval = turn, enter, pause
        self.over, self.error = threading.Event(), None
        self.start()

    def run(self):
        try:
            self.enter()
            while not self.over.wait(self.interval):
                self.turn()
        except BaseException as error:  # for who joins
            self.error = error

    def end(self):
        self.over.set()
        self.join()
        if self.error is not None:
            raise self.error
