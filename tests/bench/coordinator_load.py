"""espalierd under the load of a thousand agents: `bench_coordinator.py load`.

A real espalierd, and load_client beside it: agents and ranks on connections of their own, watchers,
and an operator whose calls wait their turn in the loop. A JSON line each window: the share of one
core that espalierd used, its resident memory, the operator's round trips as the client saw them, and
how long messages waited for the loop and its decisions, from espalierd's own histogram. The last
line compares memory at the end with that of the first window. Linux (reads /proc).
"""
import json
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
import time
import urllib.request

BIN = pathlib.Path(os.environ["ESPALIER_BIN"])
TICK = os.sysconf("SC_CLK_TCK")
HANDLING = "espalier_loop_handling_seconds"
COMMITS = "espalier_journal_commit_seconds"


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def resident_mib(pid):
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def histograms(metrics):
    """Cumulative counts of every histogram without labels: name -> [(bound, count)]."""
    with urllib.request.urlopen(f"http://{metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        name, bucket, rest = line.partition('_bucket{le="')
        if bucket:
            bound, _, count = rest.partition('"} ')
            found.setdefault(name, []).append((float(bound), float(count)))
    return found


def quantile_ms(before, after, name, share):
    """The bound of the bucket that holds the quantile of what came between two scrapes."""
    old = dict(before.get(name, []))
    counts = [(bound, count - old.get(bound, 0)) for bound, count in after.get(name, [])]
    if not counts or counts[-1][1] == 0:
        return None
    return next(bound for bound, count in counts if count >= share * counts[-1][1]) * 1e3


def wait_for(path):
    for _ in range(200):
        if path.exists():
            return dict(line.split("=", 1) for line in path.read_text().split())
        time.sleep(0.1)
    raise SystemExit(f"espalierd did not start: {path.parent.parent}/espalierd.log")


def measure(folder, minutes, window, arguments):
    # Two connections a node, in each of the two processes.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    agents = int(arguments[arguments.index("--agents") + 1]) if "--agents" in arguments else 1000
    nodes = "\n".join(f"  - {{name: node{i}, address: 127.0.0.1}}" for i in range(agents))
    (folder / "cluster.yaml").write_text(f"nodes:\n{nodes}\n")
    log = (folder / "espalierd.log").open("w")
    daemon = subprocess.Popen(
        [BIN / "espalierd", "--cluster", folder / "cluster.yaml", "--state-dir", folder / "state",
         "--metrics-listen", "127.0.0.1:0"], stdout=log, stderr=log)
    client = None
    try:
        at = wait_for(folder / "state" / "address")
        print(json.dumps({"bench": "coordinator", "figure": "idle",
                          "resident_mib": round(resident_mib(daemon.pid), 1)}), flush=True)
        client = subprocess.Popen(
            [pathlib.Path(os.environ["ESPALIER_BENCH"]) / "load_client",
             "--target", f"unix:{at['socket']}", "--window", str(window),
             "--windows", str(max(1, round(minutes * 60 / window))), *arguments],
            stdout=subprocess.PIPE, text=True)
        report(daemon, client, at["metrics"])
    finally:
        for process in (client, daemon):
            if process:
                process.terminate()
                process.wait()


def report(daemon, client, metrics):
    first = last = None
    began, used, before = time.time(), cpu_seconds(daemon.pid), histograms(metrics)
    for line in client.stdout:
        figures = json.loads(line)
        now, now_used, after = time.time(), cpu_seconds(daemon.pid), histograms(metrics)
        figures["resident_mib"] = round(resident_mib(daemon.pid), 1)
        figures["espalierd_cores"] = round((now_used - used) / (now - began), 3)
        for name, key in ((HANDLING, "handling"), (COMMITS, "commit")):
            for share in (0.5, 0.99):
                bound = quantile_ms(before, after, name, share)
                figures[f"{key}_p{round(share * 100)}_ms_at_most"] = bound
        if "seconds" in figures:
            first = first or figures
            last = figures
        print(json.dumps({"bench": "coordinator", "figure": "load", **figures}), flush=True)
        began, used, before = now, now_used, after
    if client.wait() != 0 or last is None:
        raise SystemExit("the client of the load failed")
    print(json.dumps({"bench": "coordinator", "figure": "memory under load",
                      "first_window_mib": first["resident_mib"],
                      "last_window_mib": last["resident_mib"]}))


def run(minutes, window, arguments):
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        measure(folder, minutes, window, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
