#!/usr/bin/env python3
"""How long a fault and a join cost, on two nodes in network namespaces, under a real espalierd.

stop   SIGSTOP of a worker, and
cut    a node's link goes down: seconds beyond failure_timeout until the decision, which is the
       event that names the node. By espalierd's clock, which is this machine's. Of each timeout.
kill   SIGKILL of a worker to the next committed step: `soak kills --workers`, called.
join   a drained node is allowed back: how long no step was committed, in its phases; tokens/s of
       the node that trains on, from the answer until then, over those before.
alarms with --false-alarms MINUTES alone: faults found in a run that has none, with a busy loop, or
       several, on every core.
Without a name: all but alarms. One JSON line a figure; nothing is asserted.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import time

from job_steps import Job, add_shape, tell
from joins_and_alarms import NODES, alarms, join, quantiles, settings, trains
from testbed import REPOSITORY, Node, Testbed


def faults(bed, given, name, disturb, heal):
    """What is beyond the timeout, of each; those that do not name the node."""
    for timeout in given.timeouts:
        beyond, misnamed, told = [], [], ""
        with Job(bed, given, *settings(timeout)) as job:
            for turn in range(given.repeats):
                victim = NODES[turn % 2]
                trains(bed, job, 2)
                pid, known = job.ranks()[victim], len(job.events())
                time.sleep(turn / given.repeats)  # at any moment of a step and of a heartbeat
                began = time.time()
                disturb(victim, pid)
                try:
                    decided = lambda: [event for event in job.events()[known:]
                                       if event["state"] == "RECOVERING"]
                    bed.until("the decision", decided, 10 * timeout + 60)
                finally:
                    heal(victim)
                event = decided()[0]
                told = event["text"]
                beyond.append(event["time_ms"] / 1000 - began - timeout)
                if f"on {victim} " not in told:
                    misnamed.append(f"{victim}: {told}")
                for node in NODES:  # else each fault makes the next return wait longer
                    bed.ask("nodes", "allow", node)
        tell("recovery", f"{name}: seconds beyond failure_timeout until the decision",
             model=given.model, failure_timeout=timeout, beyond=quantiles(beyond),
             all=beyond, not_named=misnamed, told=told)


def stop(given):
    def freeze(_, pid):
        os.kill(pid, signal.SIGSTOP)
    with Testbed({name: Node() for name in NODES}, given.rate) as bed:
        faults(bed, given, "SIGSTOP of a worker", freeze, lambda _: None)


def cut(given):
    with Testbed({name: Node() for name in NODES}, given.rate) as bed:
        faults(bed, given, "link down", lambda name, _: bed.network.cut(name),
               bed.network.mend)


def kill(given):
    kills = [sys.executable, REPOSITORY / "tests" / "soak" / "kills.py", "--daemon", 0,
             "--parts", 0, "--workers", given.kills, "--model", given.model]
    done = subprocess.run([str(word) for word in kills], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    for line in done.stdout.splitlines():
        tell("recovery", "SIGKILL of a worker: seconds to the next committed step, p50, p99, most",
             **json.loads(line))


PARTS = {"stop": stop, "cut": cut, "kill": kill, "join": join}


def main():
    options = argparse.ArgumentParser(prog="recovery", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", metavar="PART", help="stop, cut, kill, join")
    add_shape(options, 8)
    options.add_argument("--rate", default="1gbit", help="of each link, as tc spells it, or none")
    options.add_argument("--timeouts", type=float, nargs="+", default=[5, 10])
    options.add_argument("--repeats", type=int, default=10, help="of stop and cut, each timeout")
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--joins", type=int, default=5)
    options.add_argument("--false-alarms", type=float, metavar="MINUTES", default=0)
    options.add_argument("--loops", type=int, default=1, help="busy ones, on every core")
    given = options.parse_args()
    if given.false_alarms:
        return alarms(given)
    for part in given.parts or PARTS:
        if part not in PARTS:
            options.error(f"no part '{part}'; there are: {', '.join(PARTS)}")
        PARTS[part](given)


if __name__ == "__main__":
    main()
