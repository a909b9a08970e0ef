"""espalierd, the agents of two nodes on loopback, the real mpirun and stub workers, as processes that
kills.py ends and starts again, and tests/bench/bench_start.py starts jobs on. Everything lives in
one folder, by which its processes are known.
Linux (reads /proc).
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BIN = pathlib.Path(os.environ["ESPALIER_BIN"]).resolve()
STUB = pathlib.Path(os.environ.get("ESPALIER_STUB", BIN / "../tests/stub_worker")).resolve()
NODES = {"left": "127.0.0.1", "right": "127.0.0.2"}
FINAL = ("COMPLETED", "FAILED", "CANCELLED")
PATIENCE = 60  # seconds; far more than anything takes


class Broken(Exception):
    """A rule does not hold."""


def quantile(values, share):
    return round(sorted(values)[int(share * (len(values) - 1))], 3) if values else None


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def read(path):
    try:
        return pathlib.Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def name_of(pid):
    return os.path.basename(read(f"/proc/{pid}/cmdline").split("\0")[0])


def link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


class Operator:
    """Asks the espalierd whose state folder is `state`."""
    state = None
    pause = 0.01  # seconds between two looks

    def ask(self, *words, fail_ok=False):
        done = subprocess.run([BIN / "espalier", "--coordinator", self.state, "-o", "json", *words],
                              capture_output=True, text=True)
        if done.returncode == 0:
            return json.loads(done.stdout or "{}")
        if fail_ok:
            return None
        raise Broken(f"espalier {' '.join(map(str, words))}: {done.stderr}")

    def job(self, job):
        return self.ask("job", job)["status"]

    def events(self, job):
        return self.ask("events", job)["events"]

    def tell_of_jobs(self, most=12):
        """What espalierd knows of each job, for who reads why something did not come about."""
        for job in (self.ask("jobs", fail_ok=True) or {}).get("jobs", []):
            name = job["id"]
            print(json.dumps(self.ask("job", name, fail_ok=True)), file=sys.stderr)
            for event in (self.ask("events", name, fail_ok=True) or {}).get("events", [])[-most:]:
                print(f"  {event['text']}", file=sys.stderr)

    def until(self, what, condition, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(self.pause)
        raise Broken(f"{what}: not within {seconds} s")

    def reach(self, job, state, seconds=PATIENCE):
        """Waits for a state; fails when the job ends otherwise."""
        def there():
            status = self.job(job)
            if status["state"] in FINAL and status["state"] != state:
                raise Broken(f"{job} is {status['state']} ({status['reason']}), not {state}")
            return status["state"] == state
        self.until(f"{job} becomes {state}", there, seconds)

    def ranks(self, job):
        return [int(rank["pid"]) for rank in self.job(job).get("ranks", []) if int(rank.get("pid", 0))]

    def under_control(self, job, pids):
        """Every rank that lives has attached again."""
        ranks = self.job(job).get("ranks", [])
        back = {int(rank.get("pid", 0)) for rank in ranks if rank.get("attached")}
        return all(pid in back or not alive(pid) for pid in pids)


class World(Operator):
    def __init__(self, addresses=None, with_agents=True, worker=STUB):
        self.worker = worker
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="espalier-kills-"))
        self.state = self.folder / "state"
        self.addresses = addresses or NODES
        self.write_cluster(self.addresses)
        (self.folder / "data").mkdir()
        (self.folder / "data" / "manifest.json").write_text("{}")
        self.log = (self.folder / "log").open("ab")
        self.daemon = None
        self.number = 0
        self.agents = {}
        self.start_daemon()
        if with_agents:
            for node in NODES:
                self.start_agent(node)
            self.await_agents()

    def write_cluster(self, names):
        nodes = "".join(f"  - {{name: {name}, address: {self.addresses[name]}}}\n" for name in names)
        (self.folder / "cluster.yaml").write_text(
            f"metrics_listen: 127.0.0.1:0\nlauncher: {{worker: {self.worker}}}\nnodes:\n{nodes}")

    def await_agents(self):
        self.until("the agents attach", lambda: all(
            node["agent"] == "ATTACHED" for node in self.ask("nodes")["nodes"]))

    def close(self, keep):
        for process in [self.daemon, *self.agents.values()]:
            process.kill()
            process.wait()
        for pid, _ in self.others():
            os.kill(pid, signal.SIGKILL)
        for entry in self.folder.glob("*/warm/espalier-*"):
            (pathlib.Path("/dev/shm") / entry.name).unlink(missing_ok=True)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- processes ----------------------------------------------------------------------------
    def start_daemon(self):
        self.daemon = subprocess.Popen(
            [BIN / "espalierd", "--cluster", self.folder / "cluster.yaml", "--state-dir", self.state],
            stdout=self.log, stderr=self.log)
        self.until("espalierd answers", lambda: self.ask("jobs", fail_ok=True) is not None)

    def start_agent(self, node):
        self.agents[node] = subprocess.Popen(
            [BIN / "espalier-agent", "run", "--coordinator", self.state, "--node", node,
             "--state-dir", self.folder / f"agent-{node}",
             "--condition", self.folder / f"condition-{node}"], stdout=self.log, stderr=self.log)

    def kill_daemon(self):
        """SIGKILL and a start at once; seconds until it answers."""
        began = time.monotonic()
        self.daemon.kill()
        self.daemon.wait()
        self.start_daemon()
        return time.monotonic() - began

    def others(self):
        """(pid, what is known of it) of each process of this world but espalierd and agents."""
        own = {self.daemon.pid, os.getpid()} | {agent.pid for agent in self.agents.values()}
        mark = str(self.folder)
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in own or not alive(entry.name):
                continue
            words = read(entry / "cmdline").replace("\0", " ")
            # Open MPI's daemons are known by where they write alone.
            where = [link(entry / name) for name in ("cwd", "fd/1", "fd/2")]
            known = " ".join((words, *where, read(entry / "environ").replace("\0", " ")))
            # By agents, of themselves; one that ends has no words any more.
            asked = "--version" in words or where[0].endswith("/self-test")
            if mark in known and f"{BIN}/espalier " not in words and not asked:
                found.append((int(entry.name), known))
        return found

    def of_generation(self, job, generation):
        """Its processes: ranks, mpirun, Open MPI's daemons, mpirun's remote-shell agents."""
        marks = (f"--job-id {job} --generation {generation} ",
                 f"generations/{job}.{generation}/", f"logs/gen-{generation:04d}.log ")
        return [pid for pid, known in self.others()
                if f"{job}" in known and any(mark in known for mark in marks)]

    def submit(self, steps, backoff=0.2, nodes="{min_nodes: 2}"):
        self.number += 1
        path = self.folder / "job.yaml"
        path.write_text(f"name: kill-{self.number}\nmodel: {{preset: nano}}\n"
                        f"data: {{path: {self.folder}/data}}\ntrain: {{steps: {steps}}}\n"
                        f"parallel: {nodes}\ncheckpoint: {{every_steps: 50}}\n"
                        f"health: {{restart_backoff_seconds: {backoff}, max_restarts: 1000}}\n")
        return self.ask("submit", str(path))["job_id"]
