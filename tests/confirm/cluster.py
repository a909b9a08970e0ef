"""espalierd and one agent on this machine, for the checks that need them, or an espalierd that runs
already. Whatever is started is ended by its process, and lies in one folder, whose path is short
unless it is asked to be long: sockets have at most 103 letters on macOS. Used by all that checks
here.
"""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

BIN = pathlib.Path(os.environ["ESPALIER_BIN"]).resolve()
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FINAL = ("COMPLETED", "FAILED", "CANCELLED")
NODE = "here"
# Of every job: nothing is written or kept that a check does not look at.
JOB = """
name: confirm
model: {{{model}}}
data: {{path: {data}, sequence_length: {sequence}}}
train: {{steps: {steps}, global_batch: {batch}, precision: {precision}, seed: 1,
         schedule: {{kind: constant, learning_rate: 1e-3, warmup_steps: 0}}{train}}}
batch: {{{sizes}}}
checkpoint: {{every_steps: {checkpoint}}}
evaluate: {{every_steps: 0, max_sequences: 8}}
health: {{restart_backoff_seconds: 0.1}}
parallel: {{{parallel}}}
launch: {{device: {device}}}
"""
DEFAULTS = {"model": "preset: nano", "sequence": 64, "steps": 20, "batch": 8, "precision": "fp32",
            "train": "", "sizes": "micro_batch: [4]", "checkpoint": 0, "parallel": "min_nodes: 1",
            "device": "auto"}


class Operator:
    """Asks an espalierd: the one of `state`, or the one that the environment names."""
    state = None

    def ask(self, *words, fail_ok=False):
        where = ["--coordinator", self.state] if self.state else []
        done = subprocess.run([BIN / "espalier", *where, "-o", "json", *words],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False)
        if done.returncode == 0:
            return json.loads(done.stdout or "{}")
        if fail_ok:
            return None
        raise RuntimeError(f"espalier {' '.join(map(str, words))}: {done.stderr}")

    def job(self, job):
        return self.ask("job", job)["status"]

    def until(self, what, condition, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(0.1)
        raise RuntimeError(f"{what}: not within {seconds} s")

    def reach(self, job, step, seconds=300):
        """Waits for a step; the job's status then."""
        def there():
            status = self.job(job)
            if int(status.get("step", 0)) >= step:
                return status
            if status["state"] in FINAL:
                raise RuntimeError(f"{job} is {status['state']}: {status.get('reason')}")
            return None
        return self.until(f"step {step} of {job}", there, seconds)


def padded(path, letters):
    """A folder of that name whose path has at least so many letters."""
    missing = letters - len(str(path)) - 1
    return path / ("x" * missing) if missing > 0 else path


class Cluster(Operator):
    """`letters`: of its state folders' paths, at least."""

    def __init__(self, letters=0):
        base = "/tmp" if os.path.isdir("/tmp") else None
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="espc-", dir=base)).resolve()
        self.state = padded(self.folder / "state", letters)
        self.agent_state = padded(self.folder / "agent", letters)
        self.state.mkdir(parents=True, mode=0o700)
        self.log = (self.folder / "log").open("ab")
        self.data, self.number, self.processes = self.folder / "data", 0, []
        try:
            self.begin()
        except BaseException:
            self.close(keep=True)
            raise

    def begin(self):
        texts = sorted(REPOSITORY.glob("*/*/*.md"))
        subprocess.run([BIN / "espalier-worker", "data", "prepare", "--output", self.data, *texts],
                       check=True, stdout=self.log, stderr=self.log)
        path = self.folder / "cluster.yaml"
        path.write_text(f"metrics_listen: 127.0.0.1:0\nnodes:\n"
                        f"  - {{name: {NODE}, address: 127.0.0.1}}\n", encoding="utf-8")
        self.start("espalierd", "--cluster", path, "--state-dir", self.state)
        self.until("espalierd answers", lambda: self.ask("jobs", fail_ok=True) is not None)
        self.start("espalier-agent", "run", "--coordinator", self.state, "--node", NODE,
                   "--state-dir", self.agent_state, "--data", self.data)
        self.until("the agent attaches", lambda: self.node()["agent"] == "ATTACHED")

    def start(self, program, *words):
        self.processes.append(subprocess.Popen(
            [BIN / program, *words], stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": "/tmp"}))

    def node(self):
        return self.ask("nodes")["nodes"][0]

    def file(self, **settings):
        """A job file."""
        self.number += 1
        path = self.folder / f"job-{self.number}.yaml"
        path.write_text(JOB.format(**{**DEFAULTS, "data": self.data, **settings}), encoding="utf-8")
        return path

    def submit(self, **settings):
        return self.ask("submit", self.file(**settings))["job_id"]

    def complete(self, job):
        """Waits for its end; its status then."""
        def ended():
            status = self.job(job)
            return status if status["state"] in FINAL else None
        status = self.until(f"{job} ends", ended, 300)
        if status["state"] != "COMPLETED":
            raise RuntimeError(f"{job} is {status['state']}: {status.get('reason')}")
        return status

    def model_hash(self, job):
        """Of its newest checkpoint."""
        newest = max((self.state / "jobs" / job / "checkpoints").glob("step-*"))
        return hashlib.sha256((newest / "model.safetensors").read_bytes()).hexdigest()

    def cancel(self, job):
        self.ask("cancel", job)
        self.until(f"{job} ends", lambda: self.job(job)["state"] in FINAL)

    def close(self, keep):
        for job in (self.ask("jobs", fail_ok=True) or {}).get("jobs", []):
            if job["state"] not in FINAL:
                self.ask("cancel", job["id"], fail_ok=True)
        end = time.monotonic() + 20
        while time.monotonic() < end and any(
                job["state"] not in FINAL
                for job in (self.ask("jobs", fail_ok=True) or {}).get("jobs", [])):
            time.sleep(0.2)
        for process in self.processes:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.log.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
