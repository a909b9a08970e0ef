#!/usr/bin/env python3
"""What two workers 2:1 sample together, under a real espalierd: completions/s of the rollouts of a
grpo job as a part of the sum of what each samples in a job of its own, both of those at the same
time, since the two cores are of one machine. Each worker has a core; the second one's sampling is
slowed by --slow-down. All jobs sample the same completions, which end when they end: their model,
prompts and seeds are the same, and its learning rate changes nothing. Beside it what an even split
would reach: the slow one with one half. One JSON line; medians of rounds.
"""
import argparse
import contextlib
import statistics

from job_steps import Job, add_shape, tell
from namespaces import run
from testbed import BIN, Node, Testbed

JOB = """
name: rollouts
model: {{preset: {model}}}
data: {{path: {data}, sequence_length: {sequence}}}
train:
  task: grpo
  steps: 1000000
  global_batch: {batch}
  precision: {precision}
  rollout: {{samples: {samples}, max_new_tokens: {new_tokens}, temperature: 1}}
  verifier: {{kind: arithmetic}}
  schedule: {{kind: constant, learning_rate: 1e-12, warmup_steps: 0}}
batch: {{micro_batch: [{micro_batch}]}}
checkpoint: {{every_steps: 0}}
evaluate: {{every_steps: 0, max_prompts: 1}}
health: {{failure_timeout_seconds: 60, max_restarts: 0, restart_backoff_seconds: 0.1}}
launch: {{threads: 1, timeout_seconds: 300}}
"""
WARM_UP = 2  # steps that do not count: their ranks do not know yet how fast they are


class Rollouts(Job):
    def text(self, shape):
        return JOB.format(data=self.bed.folder / "prompts", **vars(shape))


def make_prompts(bed):
    sums = bed.folder / "sums"
    run(BIN / "espalier-worker", "data", "make", "arithmetic", "--output", sums, "--train", "4000",
        "--validation", "20")
    run(BIN / "espalier-worker", "data", "prepare", "--output", bed.folder / "prompts", "--format",
        "prompts", "--validation-files", sums / "validation-prompts.jsonl", "--",
        sums / "train-prompts.jsonl")


def sampling_seconds(job, count):
    """Of each step that counts: until the last of its ranks had the last completion judged."""
    return [max(report["rollout_seconds"] + report["reward_seconds"]
                for report in job.steps[step].values())
            for step in job.whole_steps()[WARM_UP:WARM_UP + count]]


def alone(bed, given):
    """Completions/s of each node by itself."""
    with contextlib.ExitStack() as stack:
        jobs = {name: stack.enter_context(Rollouts(bed, given, f"parallel.nodes=[{name}]"))
                for name in bed.nodes}
        for job in jobs.values():
            job.await_steps(WARM_UP + given.steps)
        return {name: given.batch * given.steps / sum(sampling_seconds(job, given.steps))
                for name, job in jobs.items()}


def together(bed, given):
    nodes = len(bed.nodes)
    with Rollouts(bed, given, f"parallel.min_nodes={nodes}", f"parallel.max_nodes={nodes}",
                  "parallel.plan=measured") as job:
        job.await_steps(WARM_UP + given.steps, nodes)
        return given.batch * given.steps / sum(sampling_seconds(job, given.steps))


def main():
    options = argparse.ArgumentParser(prog="rollouts", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    add_shape(options, 64)
    options.set_defaults(precision="fp32")
    options.add_argument("--samples", type=int, default=4, help="completions of a prompt")
    options.add_argument("--new-tokens", type=int, default=128, help="of a completion, at most")
    options.add_argument("--slow-down", type=float, default=2)
    options.add_argument("--rate", default="1gbit", help="of each link, as tc spells it, or none")
    options.add_argument("--steps", type=int, default=6, help="that count")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    nodes = {"fast": Node(core=0), "slow": Node(core=1, options=f"--slow-down {given.slow_down}")}
    ratios, rates = [], []
    with Testbed(nodes, given.rate) as bed:
        make_prompts(bed)
        for _ in range(given.rounds):
            solo, both = alone(bed, given), together(bed, given)
            ratios.append(both / sum(solo.values()))
            rates.append((solo, both))
    solo, both = rates[ratios.index(statistics.median_low(ratios))]
    tell("rollouts", "completions/s together over the sum alone", model=given.model,
         batch=given.batch, new_tokens=given.new_tokens, precision=given.precision, rate=bed.rate,
         slow_down=given.slow_down, ratio=statistics.median(ratios), rounds=ratios,
         completions_per_second=both, alone_completions_per_second=solo,
         even_split=2 * min(solo.values()) / sum(solo.values()))


if __name__ == "__main__":
    main()
