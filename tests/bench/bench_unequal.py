#!/usr/bin/env python3
"""What machines of different speed reach together, under a real espalierd whose plan is measured.

pair   two workers 2:1 that compute, each on a core of its own; the second one's computing is slowed
       by a factor that is found first. Tokens/s together over the sum of what each reaches with a
       job of its own, both jobs at the same time, since the two cores are of one machine.
four   4:2:1:1: workers that wait in place of computing, so that four of them fit on two cores.
turn   two equal workers; a busy loop takes half of one's core. How much later than the mean the
       latest rank has its own part of each of the next steps, and the steps until below 5 %.
Each beside an even split. Without a name: all. 1 Gb/s between network namespaces, 17m, gradients as
bf16, unless the options say otherwise. One JSON line a figure; medians of rounds, in turn.
"""
import argparse
import contextlib
import statistics
import time

from job_steps import Job, add_shape, busy, own_seconds, tell
from testbed import Node, Testbed

WIRE = "parallel.gradient_dtype=bf16"
UNTIL_PLANNED = 5  # steps that do not count; the first two measure
BALANCED = 0.05


def together(bed, shape, plan, steps):
    """Tokens/s of all nodes, the shares of the newest plan, and what steps went to."""
    nodes = len(bed.nodes)
    settings = (f"parallel.min_nodes={nodes}", f"parallel.max_nodes={nodes}", WIRE, plan)
    with Job(bed, shape, *settings) as job:
        job.await_steps(UNTIL_PLANNED + steps, nodes)
        return (job.tokens_per_second(UNTIL_PLANNED), job.status["plan"]["sequences"],
                job.accounts(UNTIL_PLANNED))


def alone(bed, shape, steps):
    """Tokens/s of each node with a job of its own, all at the same time."""
    with contextlib.ExitStack() as stack:
        jobs = {name: stack.enter_context(Job(bed, shape, f"parallel.nodes=[{name}]"))
                for name in bed.nodes}
        for job in jobs.values():
            job.await_steps(1 + steps)
        return {name: job.tokens_per_second(1) for name, job in jobs.items()}


def even(bed):
    return f"parallel.shares=[{','.join('1' * len(bed.nodes))}]"


def compare(figure, bed, given, **more):
    """Rounds of all three; the figure is the planned rate over the sum of those alone."""
    ratios, even_ratios, rates = [], [], []
    for _ in range(given.rounds):
        solo = alone(bed, given, given.solo_steps)
        planned, *more_of_it = together(bed, given, "parallel.plan=measured", given.steps)
        split, *_ = together(bed, given, even(bed), given.steps)
        ratios.append(planned / sum(solo.values()))
        even_ratios.append(split / sum(solo.values()))
        rates.append((planned, solo, *more_of_it))
    middle = ratios.index(statistics.median_low(ratios))
    planned, solo, shares, accounts = rates[middle]
    tell("unequal", figure, model=given.model, batch=given.batch, sequence=given.sequence,
         precision=given.precision, rate=bed.rate, ratio=statistics.median(ratios), rounds=ratios,
         even_ratio=statistics.median(even_ratios), even_rounds=even_ratios,
         tokens_per_second=planned, alone_tokens_per_second=solo, sequences=shares,
         seconds_of_each_rank=accounts, **more)


def pair(given):
    with Testbed({"fast": Node(core=0), "slow": Node(core=1)}, given.rate) as bed:
        factor, found = 2.0, 0.0
        for _ in range(2):
            bed.set_options("slow", f"--slow-down {factor:.4f}")
            rates = alone(bed, given, given.solo_steps)
            found = rates["fast"] / rates["slow"]
            factor = max(1.0, factor * 2 / found)
        bed.set_options("slow", f"--slow-down {factor:.4f}")
        compare("together over the sum alone, 2:1", bed, given, slow_down=factor)


def four(given):
    seconds = {"a": 0.25, "b": 0.5, "c": 1, "d": 1}
    nodes = {name: Node(options=f"--pretended-seconds {part * given.pretended:.6f}")
             for name, part in seconds.items()}
    with Testbed(nodes, given.rate) as bed:
        compare("together over the sum alone, 4:2:1:1, waits in place of compute", bed, given,
                pretended_seconds=[part * given.pretended for part in seconds.values()])


def imbalance(reports):
    seconds = [own_seconds(report) for report in reports.values()]
    return max(seconds) / statistics.mean(seconds) - 1


def turned(bed, given, plan):
    """Imbalance of the steps after one rank turned, the plan's moves, and how slow it turned."""
    with Job(bed, given, "parallel.min_nodes=2", WIRE, plan) as job:
        job.await_steps(UNTIL_PLANNED + given.steps, 2)
        before = statistics.median(own_seconds(job.steps[step][1]) / job.steps[step][1]["shard"]
                                   for step in job.whole_steps(2)[UNTIL_PLANNED:])
        with busy(1):
            begun, moment = job.status["step"], time.time()  # the step that turns
            job.bed.until("the steps after", lambda: job.alive() and
                          max(job.whole_steps(2)) >= begun + given.after, 1200)
            steps = [step for step in job.whole_steps(2) if step > begun][:given.after]
            slow = statistics.median(own_seconds(job.steps[step][1]) / job.steps[step][1]["shard"]
                                     for step in steps)
            moves = [event["text"] for event in job.events("plan: ")
                     if event["time_ms"] > moment * 1000]
        return ([imbalance(job.steps[step]) for step in steps],
                [[job.steps[step][rank]["shard"] for rank in (0, 1)] for step in steps],
                moves, slow / before)


def turn(given):
    with Testbed({"left": Node(core=0), "right": Node(core=1)}, given.rate) as bed:
        for plan in ("parallel.plan=measured", even(bed)):
            until = []
            for _ in range(given.rounds):
                parts, shares, moves, factor = turned(bed, given, plan)
                steps = [step for step, part in enumerate(parts, 1) if part < BALANCED]
                until.append(steps[0] if steps else None)
                tell("unequal", "imbalance of each step after a rank turned twice as slow",
                     setting=plan, turned_slower=factor, imbalance=parts, sequences=shares,
                     steps_until_below_5_percent=until[-1], moves=moves)
            known = [steps if steps is not None else given.after + 1 for steps in until]
            tell("unequal", "steps until the imbalance is below 5 %", setting=plan,
                 batch=given.batch, precision=given.precision, steps=statistics.median(known),
                 rounds=until, looked_at=given.after)


PARTS = {"pair": pair, "four": four, "turn": turn}
BATCHES = {"pair": 48, "four": 64, "turn": 48}


def main():
    options = argparse.ArgumentParser(prog="unequal", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", metavar="PART", help="pair, four, turn")
    add_shape(options, None)
    options.add_argument("--rate", default="1gbit", help="of each link, as tc spells it, or none")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=8, help="that count, together")
    options.add_argument("--solo-steps", type=int, default=4, help="that count, alone")
    options.add_argument("--after", type=int, default=10, help="steps after a turn")
    options.add_argument("--pretended", type=float, default=0.6,
                         help="seconds of a sequence on the slowest of the four")
    given = options.parse_args()
    for part in given.parts or PARTS:
        if part not in PARTS:
            options.error(f"no part '{part}'; there are: {', '.join(PARTS)}")
        chosen = argparse.Namespace(**vars(given))
        chosen.batch = given.batch or BATCHES[part]
        PARTS[part](chosen)


if __name__ == "__main__":
    main()
