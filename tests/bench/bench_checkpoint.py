#!/usr/bin/env python3
"""What warm memory and checkpoints cost a running job: seconds of every step, with the state in
memory that outlives the worker and without, with a checkpoint every so many steps and without.

The four kinds of run take turns under one espalierd. Slow-down: the mean step of a run over that of
the plain run of the same round, in per cent; median of the rounds. Stall: the seconds of the step
that begins with a checkpoint, less the run's median; and what the worker itself counts as waiting
for the checkpoint in that step; p50 and p99 over all rounds. Steps of which two fall into the same
tenth of a second are not all seen, so there should be none that short. One node with --threads,
which leaves the other core to the threads that write; or --nodes 2 with a core each, which leaves
nothing. One JSON line a figure.
"""
import argparse
import os
import statistics

from job_steps import Job, add_shape, step_seconds, tell
from testbed import Node, Testbed

WARM_UP = 3  # steps that do not count
KINDS = ("plain", "warm", "checkpoints", "warm and checkpoints")


def measure(bed, given, kind):
    """Reports of rank 0 by step, and how many are missing among them."""
    warm = "true" if "warm" in kind else "false"
    every = given.every if "checkpoints" in kind else 0
    nodes = len(bed.nodes)
    with Job(bed, given, f"parallel.min_nodes={nodes}", f"launch.threads={given.threads}",
             f"checkpoint.warm_state={warm}", f"checkpoint.every_steps={every}",
             "parallel.plan=fixed", "parallel.gradient_dtype=bf16") as job:
        job.await_steps(WARM_UP + given.steps)
        written = job.status.get("last_checkpoint", {}).get("step", 0)
        if every and not written:
            raise SystemExit(f"{job.id} wrote no checkpoint")
        told = {step: job.steps[step][0] for step in job.whole_steps()[WARM_UP:]
                if 0 in job.steps[step]}
        return told, max(told) + 1 - min(told) - len(told)


def quantile(values, share):
    return sorted(values)[round(share * (len(values) - 1))]


def both(values):
    return {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99)}


def seconds_of(told):
    return [step_seconds(report) for report in told.values()]


def slower(one, other, middle):
    return 100 * (middle(seconds_of(one)) / middle(seconds_of(other)) - 1)


def stalls(rounds, kind, every):
    """What is written after step n - 1 is committed is counted with step n: beyond the usual, and
    what it waited."""
    beyond, waited = [], []
    for run in rounds:
        usual = statistics.median(seconds_of(run[kind]))
        begun = [report for step, report in run[kind].items() if step % every == 0]
        beyond += [step_seconds(report) - usual for report in begun]
        waited += [report["checkpoint_seconds"] for report in begun]
    return beyond, waited


def report(given, rounds):
    for kind in KINDS[1:]:
        means = [slower(run[kind], run["plain"], statistics.mean) for run in rounds]
        medians = [slower(run[kind], run["plain"], statistics.median) for run in rounds]
        tell("checkpoint", f"slow-down of steps in per cent: {kind}", **shape_of(given),
             per_cent=statistics.median(means), rounds=means,
             of_the_median_step=statistics.median(medians), rounds_of_the_median_step=medians,
             step_seconds=statistics.median(statistics.median(seconds_of(run[kind]))
                                            for run in rounds))
    plain, _ = stalls(rounds, "plain", given.every)
    for kind in KINDS[2:]:
        beyond, waited = stalls(rounds, kind, given.every)
        tell("checkpoint", f"stall of the step that begins with a checkpoint, seconds: {kind}",
             **shape_of(given), **both(beyond), waited=both(waited), checkpoints=len(beyond),
             same_steps_without_one=both(plain))


def shape_of(given):
    return {"model": given.model, "batch": given.batch, "sequence": given.sequence,
            "precision": given.precision, "nodes": given.nodes, "threads": given.threads,
            "every": given.every}


def main():
    options = argparse.ArgumentParser(prog="checkpoint", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    add_shape(options, 2)
    options.add_argument("--rate", default="1gbit", help="of each link, as tc spells it, or none")
    options.add_argument("--nodes", type=int, default=1)
    options.add_argument("--threads", type=int, default=1, help="that compute, of each worker")
    options.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    options.add_argument("--steps", type=int, default=100, help="that count, of each run")
    options.add_argument("--rounds", type=int, default=4)
    given = options.parse_args()
    nodes = {f"node{i}": Node(core=i % os.cpu_count() if given.nodes > 1 else None)
             for i in range(given.nodes)}
    rounds, missed = [], 0
    with Testbed(nodes, given.rate) as bed:
        for turn in range(given.rounds):
            runs = {}
            for kind in KINDS[turn % 4:] + KINDS[:turn % 4]:
                runs[kind], unseen = measure(bed, given, kind)
                missed += unseen
            rounds.append(runs)
    report(given, rounds)
    tell("checkpoint", "steps that were not seen", steps=missed)


if __name__ == "__main__":
    main()
