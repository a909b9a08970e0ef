"""What bench_recovery.py measures of runs without a fault: a node that is taken in, and faults that
are seen where none are.
"""
import os
import re
import statistics
import time

from job_steps import Job, busy, step_seconds, tell
from testbed import Node, Testbed

NODES = ("left", "right")


def quantiles(values):
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "most": ordered[-1], "least": ordered[0],
            "n": len(ordered)} if ordered else {"n": 0}


def settings(timeout, least=2):
    return (f"parallel.min_nodes={least}", "parallel.max_nodes=2",
            f"health.failure_timeout_seconds={timeout}", "health.max_restarts=100000")


def trains(bed, job, nodes, more=3):
    """Until so many nodes train, and then some steps."""
    bed.until("all ranks train", lambda: job.state() == "RUNNING" and len(job.ranks()) == nodes,
              600)
    begun = job.status["step"]
    bed.until("steps", lambda: job.alive() and job.status["step"] >= begun + more)


def mean_rate(job, first, end):
    """Tokens/s of the first rank in the steps first .. end - 1."""
    reports = [job.steps[step][0] for step in job.whole_steps()
               if first <= step < end and 0 in job.steps[step]]
    seconds = sum(map(step_seconds, reports))
    return sum(report["tokens"] for report in reports) / seconds if reports else None


def joins(bed, job, given):
    """One join, of the node that was drained: how long nobody trained, and rates of the other."""
    trains(bed, job, 2)
    bed.ask("nodes", "drain", "right")
    bed.until("it is left", lambda: list(job.ranks()) == ["left"])
    trains(bed, job, 1, more=8)
    alone = job.status["step"]
    # After 3 x failure_timeout a generation may take a node in.
    time.sleep(3 * min(given.timeouts))
    known, begun, began = len(job.events()), job.status["step"], time.time()
    bed.ask("nodes", "allow", "right")
    joined = lambda: [event for event in job.events("stood still for")
                      if event["number"] > known]
    bed.until("it is taken in", joined, 120)
    event = joined()[0]
    phases = {name: float(seconds) for name, seconds in
              re.findall(r"(\w+) ([\d.]+) s", event["text"].split(":", 1)[1])}
    stops = next(event for event in job.events()[known:] if event["state"] == "REGROUPING")
    end = min((step for step, told in job.steps.items() if step >= begun and len(told) > 1),
              default=job.status["step"])
    before, while_it_prepares = mean_rate(job, alone - 5, begun), mean_rate(job, begun, end)
    return (float(re.search(r"for ([\d.]+) s", event["text"]).group(1)), phases,
            stops["time_ms"] / 1000 - began, while_it_prepares / before)


def join(given):
    with Testbed({name: Node() for name in NODES}, given.rate) as bed:
        with Job(bed, given, *settings(min(given.timeouts), least=1)) as job:
            told = [joins(bed, job, given) for _ in range(given.joins)]
    stood, phases, waited, rates = zip(*told)
    tell("recovery", "join: seconds in which no step was committed", model=given.model,
         stood_still=quantiles(stood), all=stood,
         median_of_phases={name: statistics.median(entry[name] for entry in phases)
                           for name in phases[0]})
    tell("recovery", "join: tokens/s of the running node until it stops for it, over those before",
         model=given.model, ratio=statistics.median(rates), rounds=rates,
         seconds_from_allow=quantiles(waited))


def alarms(given):
    cores = [core for core in range(os.cpu_count()) for _ in range(given.loops)]
    for timeout in given.timeouts:
        with Testbed({name: Node() for name in NODES}, given.rate) as bed:
            with Job(bed, given, *settings(timeout)) as job, busy(*cores):
                trains(bed, job, 2)
                known, begun = len(job.events()), job.status["step"]
                time.sleep(given.false_alarms * 60)
                new = [event for event in job.events()[known:] if event["state"] != "RUNNING"]
                tell("recovery", "false alarms under full load", model=given.model,
                     minutes=given.false_alarms, failure_timeout=timeout, busy_loops=len(cores),
                     false_alarms=sum(event["state"] == "RECOVERING" for event in new),
                     steps=job.status["step"] - begun, told=[event["text"] for event in new])
