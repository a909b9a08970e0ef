"""What a device computes, beside what the processor computes; its memory and its limits; and a job
that an agent launches.
"""
import json
import os
import re
import signal
import subprocess
import time

import readings
from cluster import BIN, REPOSITORY, Cluster
from machine import DARWIN, sysctl
from report import NotHere, gigabytes, near, one_line, output_of

# Settings of cluster.JOB, each trained on the device and on the processor; of fp16 the processor
# trains in fp32.
KINDS = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "tied table": {"model": "preset: nano, tie_word_embeddings: true"},
    "dropout": {"model": "preset: nano, dropout: 0.1", "precision": "bf16"},
    "recomputed layers": {"train": ", recompute: [all]", "precision": "bf16"},
    "frozen parameters": {"train": ', freeze: ["*.mlp.*"]'},
    "moments of 8 bits": {"train": ", optimizer: {moments: int8}"},
    "long sequences": {"sequence": 1100, "steps": 4},
    "fine-tuning": {"train": ", task: sft", "data": "chat"},
    "adapters": {"model": "trained", "train": ", lora: {rank: 4, dropout: 0.1}"},
    "gpt2": {"model": "architecture: gpt2, hidden_size: 64, num_hidden_layers: 2, "
                      "num_attention_heads: 4, intermediate_size: 256"},
}
QUICK = ("fp32", "bf16")
LONGEST_STATE = 88  # letters of a state folder, with whose socket a path has the 103 of macOS
STEP = re.compile(r"step (\d+)/\d+  loss (\S+) .*?(\d+) tokens/s  (\d+) MB")
SMALLER = {"fp32": 0.005, "bf16": 0.05, "fp16": 0.05}  # of the loss, after as many steps


def alone(cluster, path, *words, seconds=1200):
    """Trains without a daemon. The steps that were printed: (step, loss, tokens/s, MB)."""
    folder = cluster.folder / f"alone-{os.urandom(4).hex()}"
    folder.mkdir()
    text = output_of(BIN / "espalier-worker", "--standalone", path, *words, seconds=seconds,
                     cwd=folder)
    steps = [(int(step), float(loss), int(rate), int(size))
             for step, loss, rate, size in STEP.findall(text)]
    if not steps:
        raise RuntimeError(f"no step was printed: {one_line(text[-300:])}")
    return steps


class Device:
    """The one that workers take here, and what came of its self-test."""

    def __init__(self, cluster):
        self.result = cluster.folder / "self-test"
        words = [BIN / "espalier-worker", "self-test", "--result", self.result]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.said = done.stdout.decode(errors="replace")
        self.name = "cpu"
        self.trials = []
        if self.result.exists():
            self.take()
        if not self.trials:  # of the processor nothing is tried unless it is asked for
            subprocess.run([*words, "--precision", "bf16"], stdout=subprocess.DEVNULL, check=False)
            self.take()

    def take(self):
        trial = json.loads(self.result.read_text(encoding="utf-8"))
        self.name = trial["device"].split(":")[0]
        self.trials = trial.get("precisions", [])

    def precision(self, name):
        trial = next((trial for trial in self.trials if trial["precision"] == name), None)
        if trial is None:
            raise NotHere(f"not tried on {self.name}")
        if trial.get("failed"):
            return False, f"{trial['failed']}: {one_line(trial['text'])}"
        return True, f"{self.name}, within {trial.get('difference', 0):.1e} of the norm"


def conforms(cluster, device, kind):
    settings = dict(KINDS[kind])
    if settings.get("data") == "chat":
        settings["data"] = chat(cluster)
    if settings.get("model") == "trained":
        settings["model"] = f"from: {trained(cluster)}"
    precision = settings.get("precision", "fp32")
    there = alone(cluster, cluster.file(**settings, device=device))[-1]
    settings["precision"] = "fp32" if precision == "fp16" else precision
    here = alone(cluster, cluster.file(**settings, device="cpu"))[-1]
    return (near(there[1], here[1], SMALLER[precision], 0),
            f"loss {there[1]} after {there[0]} steps, the processor {here[1]}")


def chat(cluster):
    folder, lines = cluster.folder / "chat", cluster.folder / "chat.jsonl"
    if not folder.exists():
        lines.write_text("".join(f'{{"prompt": "{i} + {i} =", "completion": " {2 * i}"}}\n'
                                 for i in range(400)), encoding="utf-8")
        output_of(BIN / "espalier-worker", "data", "prepare", "--output", folder, "--format",
                  "prompt-completion", lines)
    return folder


def trained(cluster):
    """A small model, by the processor."""
    folder = cluster.folder / "trained"
    if not folder.exists():
        folder.mkdir()
        output_of(BIN / "espalier-worker", "--standalone",
                  cluster.file(device="cpu", steps=100, checkpoint=100, sequence=512),
                  seconds=1200, cwd=folder)
    return next(folder.rglob("step-*"))


def generates(cluster, device):
    """The likeliest tokens one after another, behind a prompt of more than one part."""
    if device == "cpu":
        raise NotHere("no accelerator to compare with the processor")

    def said(where):
        return subprocess.run(
            [BIN / "espalier-worker", "generate", "--model", trained(cluster), "--device", where,
             "--temperature", "0", "--max-tokens", "150", "--prompt", "espalier " * 40],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    there, here = said(device), said("cpu")
    same = next((i for i, (a, b) in enumerate(zip(there, here)) if a != b),
                min(len(there), len(here)))
    return there == here, f"{same} of {len(here)} characters are the processor's"


def seventeen_million(cluster, device):
    if device == "cpu":
        raise NotHere("no accelerator to compare with the processor")
    words = [word for setting in (f"data.path={cluster.data}", "train.steps=20",
                                  "train.schedule.warmup_steps=5", "evaluate.every_steps=0",
                                  "checkpoint.every_steps=0")
             for word in ("--set", setting)]
    path = REPOSITORY / "configs" / "jobs" / "17m.yaml"
    there = alone(cluster, path, *words, "--device", device)[-1]
    here = alone(cluster, path, *words, "--device", "cpu")[-1]
    return (near(there[1], here[1], 0.01, 0),
            f"loss {there[1]} at {there[2]} tokens/s and {there[3]} MB, "
            f"the processor {here[1]} at {here[2]} tokens/s")


def limit_holds(cluster, device):
    """Micro-batches grow until the limit, which is far below what the batch would take."""
    most = 1_500_000_000
    swapped = readings.swapusage_used(sysctl("vm.swapusage")) if DARWIN else 0
    steps = alone(cluster, cluster.file(
        model="preset: nano, num_hidden_layers: 8", sequence=512, batch=64, steps=3, device=device,
        sizes=f"max_micro_batch: 64, memory_limit_bytes: {most}"))
    grown = readings.swapusage_used(sysctl("vm.swapusage")) - swapped if DARWIN else 0
    peak = steps[-1][3] * 1e6
    return (peak <= most and grown < 1 << 28,
            f"{gigabytes(peak)} of {gigabytes(most)} at the peak, swap grew by {gigabytes(grown)}")


# --- a job of the agent's ------------------------------------------------------------------------
class Launched:
    def __init__(self, cluster, device):
        self.cluster = cluster
        self.job = cluster.submit(steps=10**7, device=device)
        self.status = cluster.reach(self.job, 5)

    def rank(self):
        return self.cluster.job(self.job)["ranks"][0]

    def launched(self):
        rank = self.rank()
        return (self.status["state"] == "RUNNING" and rank["attached"],
                f"step {self.status['step']} on {rank['device']}, "
                f"{self.status['tokens_per_second']:.0f} tokens/s")

    def footprint(self):
        pid = int(self.rank()["pid"])
        seen = []  # it comes and goes within a step, and was told a moment ago
        for _ in range(10):
            seen.append(readings.footprint_bytes(output_of("footprint", pid)) if DARWIN
                        else readings.linux_resident(pid))
            told = int(self.rank()["memory_bytes"])
            within = min(max(told, min(seen)), max(seen))
            if near(told, within, 0.05, 1 << 25):
                break
            time.sleep(1)
        return (near(told, within, 0.05, 1 << 25),
                f"{gigabytes(told)}, {'footprint' if DARWIN else '/proc'} {gigabytes(min(seen))} "
                f"to {gigabytes(max(seen))}")

    def stays_awake(self):
        if not DARWIN:
            raise NotHere("a fact of macOS")
        text = output_of("pmset", "-g", "assertions")
        found = [one_line(line) for line in text.splitlines() if "Espalier" in line]
        held = any("PreventUserIdleSystemSleep" in line for line in found)
        return held, "; ".join(found) or "none"

    def goes_on_after_a_kill(self):
        """From what its machine keeps in memory: no committed step is computed again."""
        before = self.cluster.job(self.job)
        os.kill(int(self.rank()["pid"]), signal.SIGKILL)

        def again():
            status = self.cluster.job(self.job)
            new = int(status["generation"]) > int(before["generation"])
            return status if new and status["state"] == "RUNNING" and status.get("ranks") else None
        after = self.cluster.until("the next generation", again)
        first = int(after["step"])
        self.cluster.reach(self.job, first + 5)
        return (first >= int(before["step"]),
                f"killed after step {before['step']}, goes on from {first}")

    def end(self):
        self.cluster.cancel(self.job)


def same_bits(cluster):
    """On the processor: twice, and once with its worker killed."""
    def hashed(kill):
        job = cluster.submit(steps=120, checkpoint=120, device="cpu")
        if kill:
            status = cluster.reach(job, 1)
            os.kill(int(status["ranks"][0]["pid"]), signal.SIGKILL)
        cluster.complete(job)
        events = cluster.ask("events", job)["events"]
        if kill and not any(event["state"] == "RECOVERING" for event in events):
            raise RuntimeError("it ended before it was killed")
        return cluster.model_hash(job)
    first, again, killed = hashed(False), hashed(False), hashed(True)
    return (first == again == killed,
            f"model {first[:8]}, again {again[:8]}, with its worker killed {killed[:8]}")


def at_a_long_path():
    """A whole launch where the state folders' paths are as long as sockets allow."""
    cluster = Cluster(letters=LONGEST_STATE)
    try:
        job = cluster.submit(steps=20, device="cpu")
        status = cluster.complete(job)
        return True, f"step {status['step']} from a folder of {len(str(cluster.state))} letters"
    finally:
        cluster.close(keep=False)


def tells(cluster, device):
    """The agent's own self-test, as `espalier nodes` shows it."""
    trial = cluster.until("the agent has tried its device", lambda: cluster.node()["report"].get(
        "device"), 300)
    failed = [one["failed"] for one in trial.get("precisions", []) if one.get("failed")]
    good = not failed and not trial.get("error") and trial["device"].split(":")[0] == device
    return good, "; ".join(failed) or trial.get("error") or f"{trial['device']} good"


def check_all(report, cluster, quick):
    device = Device(cluster)
    report.check("self-test by the agent", "`espalier nodes` shows what became of it",
                 lambda: tells(cluster, device.name))
    for name in ("fp32", "bf16", "fp16"):
        report.check(f"self-test {name}", "each operation computes as on the processor",
                     lambda name=name: device.precision(name))
    for kind in QUICK if quick else KINDS:
        report.check(f"conformance: {kind}", "training comes to the processor's losses",
                     lambda kind=kind: conforms(cluster, device.name, kind))
    if not quick:
        report.check("generation", "tokens are those of the processor",
                     lambda: generates(cluster, device.name))
    report.check("memory limit", "micro-batches stay within the node's limit, nothing is swapped",
                 lambda: limit_holds(cluster, device.name))
    if not quick:
        report.check("17m for 20 steps", "the device trains as the processor does",
                     lambda: seventeen_million(cluster, device.name))
    jobs = []
    report.check("launch by an agent", "Open MPI starts a worker without ssh",
                 lambda: jobs.append(Launched(cluster, device.name)) or jobs[0].launched())
    for name, fact, look in (
            ("footprint", "phys_footprint is what a worker reports", "footprint"),
            ("kept awake", "an assertion is held while a job runs", "stays_awake"),
            ("killed worker", "POSIX shared memory outlives a process", "goes_on_after_a_kill")):
        report.check(name, fact, lambda look=look: getattr(first(jobs), look)())
    for job in jobs:
        job.end()
    report.check("launch from a long path", "Open MPI takes TMPDIR deep in a home folder",
                 at_a_long_path)
    report.check("same bits", "Accelerate gives the same bits for the same call, and after a kill",
                 lambda: same_bits(cluster))


def first(jobs):
    if not jobs:
        raise NotHere("no job runs")
    return jobs[0]
