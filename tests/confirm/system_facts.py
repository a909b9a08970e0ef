"""What takes root, or puts the machine to sleep: only when asked for."""
import json
import os
import pathlib
import plistlib
import time

from cluster import BIN
from machine import DARWIN
from report import NotHere, output_of

LABEL = "org.espalier.confirm"
SELF_TEST_SECONDS = 180  # as an agent allows
AWAKE_AFTER = 60  # seconds


def clocks():
    """The one that runs through sleep, and the one that does not."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW), time.clock_gettime(time.CLOCK_UPTIME_RAW)


class Slept:
    """A job runs, the machine sleeps for a minute and wakes."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.job = cluster.submit(steps=10**7)
        cluster.reach(self.job, 5)
        output_of("pmset", "relative", "wake", AWAKE_AFTER)
        before = clocks()
        output_of("pmset", "sleepnow")
        time.sleep(AWAKE_AFTER / 2)  # by the clock that stands still meanwhile
        after = clocks()
        self.slept = (after[0] - before[0]) - (after[1] - before[1])

    def by_the_clocks(self):
        return self.slept > AWAKE_AFTER / 4, f"they came {self.slept:.0f} s apart"

    def job_left_and_came_back(self):
        step = int(self.cluster.job(self.job)["step"])
        self.cluster.reach(self.job, step + 5)
        told = [event["text"] for event in self.cluster.ask("events", self.job)["events"]]
        left = [text for text in told if "sleep" in text]
        return bool(left), left[0] if left else "no event of the job tells of the sleep"

    def end(self):
        self.cluster.cancel(self.job)


def await_result(result):
    """Of the self-test that a daemon runs, which writes it at once when it is done."""
    end = time.monotonic() + SELF_TEST_SECONDS
    while not result.exists():
        if time.monotonic() > end:
            log = pathlib.Path(f"{result}.log")
            said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else "nothing"
            raise RuntimeError(f"no result within {SELF_TEST_SECONDS} s; it said: {said[-600:]}")
        time.sleep(0.05)
    return json.loads(result.read_text(encoding="utf-8"))


def as_daemon():
    """The self-test, as launchd starts a daemon: without a user who is logged in."""
    result = pathlib.Path("/tmp") / f"{LABEL}.{os.getpid()}"
    plist = pathlib.Path("/Library/LaunchDaemons") / f"{LABEL}.plist"
    plist.write_bytes(plistlib.dumps({
        "Label": LABEL, "RunAtLoad": True, "StandardErrorPath": f"{result}.log",
        "ProgramArguments": [str(BIN / "espalier-worker"), "self-test", "--result", str(result)]}))
    plist.chmod(0o644)
    try:
        output_of("launchctl", "bootstrap", "system", plist)
        trial = await_result(result)
    finally:
        output_of("launchctl", "bootout", f"system/{LABEL}")
        plist.unlink()
    failed = [one["precision"] for one in trial.get("precisions", []) if one.get("failed")]
    return (trial["device"].startswith("mps") and not failed,
            f"{trial['device']}, failed: {', '.join(failed) or 'nothing'}")


def check_all(report, cluster, sleep, daemon):
    found = []

    def slept(look):
        if not (DARWIN and sleep and os.getuid() == 0):
            raise NotHere("give --sleep, on macOS, as root: the machine sleeps for a minute")
        if not found:
            found.append(Slept(cluster))
        return getattr(found[0], look)()

    def daemons():
        if not (DARWIN and daemon and os.getuid() == 0):
            raise NotHere("give --daemon, on macOS, as root: launchd starts a worker once")
        return as_daemon()
    report.check("sleep, by the clocks", "CLOCK_UPTIME_RAW stands still, CLOCK_MONOTONIC_RAW not",
                 lambda: slept("by_the_clocks"))
    report.check("sleep, of a job", "an agent is told before, and its job goes on after",
                 lambda: slept("job_left_and_came_back"))
    report.check("device for a daemon", "MPS works for a LaunchDaemon", daemons)
    for one in found:
        one.end()
