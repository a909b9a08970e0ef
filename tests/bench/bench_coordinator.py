#!/usr/bin/env python3
"""What the coordinator costs: `cost` beside a training step, `load` with a thousand agents.

cost [STEPS [PRESET]]: trains under espalierd, on one worker that has all cores, while /metrics is
scraped every second. The cost is processor time: what espalierd and the worker's threads that do
not compute used, as a share of what the machine had to give. Wall time alone would say nothing at
one per cent.
load [--minutes M] [--window SECONDS] [OPTIONS of load_client]: see coordinator_load.py.
Without arguments: both. JSON lines. Linux (reads /proc).
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

import coordinator_load

BIN = pathlib.Path(os.environ["ESPALIER_BIN"])
ROOT = pathlib.Path(__file__).resolve().parents[2]
TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(stat):
    fields = stat.read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def threads(pid):
    """Processor seconds by thread: (name, id) -> seconds."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            found[(task / "comm").read_text().strip(), task.name] = cpu_seconds(task / "stat")
        except OSError:
            pass  # it ended
    return found


def worker_of(coordinator):
    """The worker that is attached there and has worked most: it may have a parent of its name."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if words and words[0].endswith(b"espalier-worker") and coordinator.encode() in words:
            found[int(entry.name)] = cpu_seconds(entry / "stat")
    return max(found, key=found.get)


def measure(folder, steps, preset):
    subprocess.run([BIN / "espalier-worker", "data", "prepare", "--output", folder / "data",
                    ROOT / "worker"], check=True, stdout=subprocess.DEVNULL)
    (folder / "cluster.yaml").write_text("nodes: [{name: here, address: 127.0.0.1}]\n")
    (folder / "job.yaml").write_text(f"""
name: cost
model: {{preset: {preset}}}
data: {{path: data, sequence_length: 256}}
train: {{steps: {steps}, global_batch: 8}}
batch: {{micro_batch: 8}}
checkpoint: {{every_steps: 0}}
evaluate: {{every_steps: 0, max_sequences: 1}}
launch: {{threads: {os.cpu_count()}}}
""")
    daemon = subprocess.Popen(
        [BIN / "espalierd", "--cluster", folder / "cluster.yaml", "--state-dir", folder / "state",
         "--metrics-listen", "127.0.0.1:0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    job = None
    try:
        address = folder / "state" / "address"
        while not address.exists():
            time.sleep(0.1)
        at = dict(line.split("=", 1) for line in address.read_text().split())
        espalier = [BIN / "espalier", "-o", "json"]
        environment = {**os.environ, "ESPALIER_COORDINATOR": str(folder / "state")}

        def ask(*words):
            return json.loads(subprocess.run([*espalier, *words], env=environment, check=True,
                                             capture_output=True).stdout)

        def step():
            with urllib.request.urlopen(f"http://{at['metrics']}/metrics") as answer:
                lines = answer.read().decode().splitlines()
            return max([float(line.split()[-1]) for line in lines
                        if line.startswith("espalier_job_step{")], default=0)

        job = ask("submit", str(folder / "job.yaml"))["job_id"]
        while step() < 3:
            time.sleep(0.5)
        worker = worker_of(str(folder / "state"))
        process = pathlib.Path(f"/proc/{daemon.pid}/stat")
        begin, first, daemon_before, before = time.time(), step(), cpu_seconds(process), threads(worker)
        while (last := step()) < steps - 2:
            wall, daemon_used, after = (time.time() - begin, cpu_seconds(process) - daemon_before,
                                        threads(worker))
            last_seen = last
            time.sleep(1)
        used = {key: seconds - before.get(key, 0) for key, seconds in after.items()}
        # All but the threads that compute, which are by far the busiest: control, and prefetching.
        control = sum(sorted(used.values(), reverse=True)[os.cpu_count():])
        have = wall * os.cpu_count()
        return {"bench": "coordinator", "figure": "processor time of control, of what there is",
                "steps": last_seen - first, "step_seconds": wall / (last_seen - first),
                "espalierd_cpu_seconds": daemon_used, "worker_other_cpu_seconds": control,
                "cost_ratio": (daemon_used + control) / have}
    finally:
        if job:  # its workers would go on without espalierd
            subprocess.run([*espalier, "cancel", job], env=environment, capture_output=True)
            time.sleep(2)
        daemon.terminate()
        daemon.wait()


def cost(steps=120, preset="17m"):
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        print(json.dumps(measure(folder, int(steps), preset)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load(words):
    options = argparse.ArgumentParser(prog="load")
    options.add_argument("--minutes", type=float, default=2)
    options.add_argument("--window", type=float, default=30)
    known, rest = options.parse_known_args(words)
    coordinator_load.run(known.minutes, known.window, rest)


def main():
    words = sys.argv[1:]
    if words and words[0] not in ("cost", "load"):
        sys.exit(__doc__)
    if not words or words[0] == "cost":
        cost(*words[1:])
    if not words or words[0] == "load":
        load(words[1:])


if __name__ == "__main__":
    main()
