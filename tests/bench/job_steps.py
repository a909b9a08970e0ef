"""Jobs on a testbed.py, and every step of theirs: what each rank reported of it (StepReport in
proto/espalier/v1/worker.proto), as `espalier watch` tells it ten times a second. Used by the same
benchmarks. Seconds of a step are those between two commits: its own, and what lay before it.
"""
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time

JOB = """
name: bench
model: {{preset: {model}{vocabulary}}}
data: {{path: {data}, sequence_length: {sequence}}}
train: {{steps: 1000000, global_batch: {batch}, precision: {precision},
         schedule: {{kind: constant, warmup_steps: 0}}}}
batch: {{micro_batch: [{micro_batch}]}}
checkpoint: {{every_steps: 0}}
evaluate: {{every_steps: 0, max_sequences: 1}}
health: {{failure_timeout_seconds: 60, max_restarts: 0, restart_backoff_seconds: 0.1}}
launch: {{threads: 1, timeout_seconds: 300}}
"""
REST = ("checkpoint_seconds", "evaluate_seconds", "paused_seconds", "rollout_seconds",
        "reward_seconds")


def add_shape(options, batch):
    """What every benchmark lets one choose of its jobs."""
    options.add_argument("--model", default="17m", help="preset")
    options.add_argument("--batch", type=int, default=batch, help="sequences of a step")
    options.add_argument("--sequence", type=int, default=256, help="tokens of a sequence")
    options.add_argument("--micro-batch", type=int, default=8, help="sequences of a pass, at most")
    options.add_argument("--precision", default="bf16")


def step_seconds(report):
    return report["step_seconds"] + sum(report[account] for account in REST)


def own_seconds(report):
    """As the planner counts: what others wait for, and in which a rank waits for nobody."""
    return report["compute_seconds"] + report["data_wait_seconds"] + report["update_seconds"]


class Job:
    """Submitted when made, cancelled when left."""

    def __init__(self, bed, shape, *settings):
        self.bed = bed
        path = bed.folder / "job.yaml"
        path.write_text(self.text(shape))
        sets = [word for setting in settings for word in ("--set", setting)]
        self.id = bed.ask("submit", path, *sets)["job_id"]
        self.steps, self.status, self.seen = {}, {}, []
        self.watch = subprocess.Popen(bed.command("watch", self.id), stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def text(self, shape):
        # 17m has its 17 million parameters with a vocabulary of that kind; bytes need 258 of it.
        vocabulary = ", vocab_size: 16384" if shape.model == "17m" else ""
        return JOB.format(model=shape.model, vocabulary=vocabulary, batch=shape.batch,
                          data=self.bed.folder / "data", sequence=shape.sequence,
                          micro_batch=shape.micro_batch, precision=shape.precision)

    def read(self):
        for line in self.watch.stdout:
            self.status = json.loads(line)["status"]
            self.seen.append((time.monotonic(), self.status.get("step", 0)))
            for rank in self.status.get("ranks", []):
                report = rank.get("last_step")
                if report:
                    self.steps.setdefault(report["step"], {})[rank["rank"]] = report

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.bed.ask("cancel", self.id)
            self.bed.until("it ends", lambda: self.state() == "CANCELLED")
        self.watch.kill()
        self.watch.wait()
        self.reader.join()

    def state(self):
        return self.bed.ask("job", self.id)["status"]["state"]

    def events(self, pattern=""):
        return [event for event in self.bed.ask("events", self.id)["events"]
                if pattern in event["text"]]

    def ranks(self):
        """Name of the node -> pid of its worker."""
        ranks = self.bed.ask("job", self.id)["status"].get("ranks", [])
        return {rank["node"]: int(rank["pid"]) for rank in ranks if int(rank.get("pid", 0))}

    def whole_steps(self, ranks=1):
        """Numbers of the steps that all ranks have reported."""
        return sorted(step for step, told in self.steps.items() if len(told) >= ranks)

    def await_steps(self, count, ranks=1, seconds=1200):
        self.bed.until(f"{count} steps of {self.id}", lambda: self.alive() and
                       len(self.whole_steps(ranks)) >= count, seconds)

    def alive(self):
        """A fault ends a job whose faults are not what is measured, and with it the benchmark."""
        if self.status.get("state") in ("FAILED", "CANCELLED", "COMPLETED"):
            raise SystemExit(f"{self.id} is {self.status['state']}: {self.status['reason']}")
        return True

    def tokens_per_second(self, first, rank=0):
        """By the median of its steps from the `first` one on, in this order, that it reported."""
        reports = [self.steps[step][rank] for step in self.whole_steps()[first:]
                   if rank in self.steps[step]]
        return reports[0]["tokens"] / statistics.median(map(step_seconds, reports))

    def accounts(self, first):
        """Of each rank, the median seconds of what its steps from the `first` one on went to."""
        told = [self.steps[step] for step in self.whole_steps()[first:]]
        ranks = range(max(map(len, told)))
        return [{account: statistics.median(reports[rank][f"{account}_seconds"]
                                            for reports in told if rank in reports)
                 for account in ("compute", "exchange_wait", "data_wait", "update")}
                for rank in ranks]


@contextlib.contextmanager
def busy(*cores):
    """A loop on each of these cores, in a session of its own, so that it counts as much as a worker
    where the kernel divides a core among sessions."""
    loop = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(["taskset", "-c", str(core), *loop], start_new_session=True)
             for core in cores]
    try:
        yield
    finally:
        for loop in loops:
            loop.send_signal(signal.SIGKILL)
            loop.wait()


def tell(bench, figure, **values):
    """One figure: a line of JSON, numbers to four digits."""
    def short(value):
        if isinstance(value, float):
            return float(f"{value:.4g}")
        if isinstance(value, dict):
            return {key: short(entry) for key, entry in value.items()}
        return [short(entry) for entry in value] if isinstance(value, (list, tuple)) else value
    print(json.dumps({"bench": bench, "figure": figure, **short(values),
                      "load_average": short(os.getloadavg()[0])}), flush=True)
