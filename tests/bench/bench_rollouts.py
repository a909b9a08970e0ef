#!/usr/bin/env python3
"""What two unequal workers do together when they learn from what they sample, under a real espalierd.

rate    completions/s of the rollouts of a grpo job on two workers 2:1 as a part of the sum of what
        each samples in a job of its own, both of those at the same time, since the two cores are of
        one machine. Each worker has a core; the second one's sampling is slowed by --slow-down.
        A turn of few sequences takes hardly less than one of many: of a small order the sum is out
        of reach by nature (--completions).
        All jobs sample the same completions, which end when they end: their model, prompts and
        seeds are the same, and the learning rate changes nothing. Beside it what an even split
        would reach: the slow one with one half.
losses  of a small model that learns by grpo, on one worker and on two with shares 2:1: the largest
        difference between the losses of a step, and between its mean rewards.
Without a name: both. One JSON line a figure; medians of rounds.
"""
import argparse
import contextlib
import statistics

from job_steps import Job, add_shape, tell
from namespaces import run
from testbed import BIN, REPOSITORY, Node, Testbed

JOB = """
name: rollouts
model: {start}
data: {{path: {data}, sequence_length: {sequence}}}
train:
  task: grpo
  steps: 1000000
  global_batch: {batch}
  precision: {precision}
  rollout: {{samples: {samples}, max_new_tokens: {new_tokens}, temperature: 1}}
  verifier: {verifier}
  grpo: {{updates_per_rollout: {updates}}}
  schedule: {{kind: constant, learning_rate: {learning_rate}, warmup_steps: 0}}
batch: {{micro_batch: [{micro_batch}]}}
checkpoint: {{every_steps: 0}}
evaluate: {{every_steps: 0, max_prompts: 1}}
health: {{failure_timeout_seconds: 60, max_restarts: 0, restart_backoff_seconds: 0.1}}
launch: {{threads: 1, timeout_seconds: 300}}
"""
JUDGE = REPOSITORY / "tests/data/verifiers/vowels.py"
WARM_UP = 2  # steps that do not count: their ranks do not know yet how fast they are


class Grpo(Job):
    def text(self, shape):
        return JOB.format(data=self.bed.folder / "prompts", **vars(shape))


def make_prompts(bed):
    sums = bed.folder / "sums"
    run(BIN / "espalier-worker", "data", "make", "arithmetic", "--output", sums, "--train", "4000",
        "--validation", "20")
    run(BIN / "espalier-worker", "data", "prepare", "--output", bed.folder / "prompts", "--format",
        "prompts", "--validation-files", sums / "validation-prompts.jsonl", "--",
        sums / "train-prompts.jsonl")


def completions_per_second(job, given):
    """Of the steps that count, each until the last of its ranks had its last completion judged."""
    seconds = [max(report["rollout_seconds"] + report["reward_seconds"]
                   for report in job.steps[step].values())
               for step in job.whole_steps()[WARM_UP:WARM_UP + given.steps]]
    return given.batch * given.steps / sum(seconds)


def alone(bed, given):
    """Of each node by itself."""
    with contextlib.ExitStack() as stack:
        jobs = {name: stack.enter_context(Grpo(bed, given, f"parallel.nodes=[{name}]"))
                for name in bed.nodes}
        for job in jobs.values():
            job.await_steps(WARM_UP + given.steps)
        return {name: completions_per_second(job, given) for name, job in jobs.items()}


def together(bed, given):
    nodes = len(bed.nodes)
    with Grpo(bed, given, f"parallel.min_nodes={nodes}", f"parallel.max_nodes={nodes}",
              "parallel.plan=measured") as job:
        job.await_steps(WARM_UP + given.steps, nodes)
        return completions_per_second(job, given)


def rate(bed, shape):
    given = argparse.Namespace(**{**vars(shape), "batch": shape.completions})
    given.start, given.verifier = f"{{preset: {given.model}}}", "{kind: arithmetic}"
    given.learning_rate, given.updates = 1e-12, 1
    bed.set_options("slow", f"--slow-down {given.slow_down}")
    ratios, rates = [], []
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


def learned(bed, given, *settings):
    """Loss and mean reward of each step."""
    nodes = 2 if len(settings) > 1 else 1
    with Grpo(bed, given, *settings) as job:
        job.await_steps(given.learning_steps, nodes)
        reports = [job.steps[step][0] for step in job.whole_steps()[:given.learning_steps]]
    return [(report["loss"], next(figure["value"] for figure in report["figures"]
                                  if figure["name"] == "reward")) for report in reports]


def losses(bed, given):
    given.start = f"{{from: {REPOSITORY}/tests/data/models/quickstart}}"
    given.verifier = f"{{kind: external, command: [python3, {JUDGE}]}}"
    given.learning_rate, given.updates = 3e-4, 2
    bed.set_options("slow", "")
    one = learned(bed, given, "parallel.nodes=[fast]")
    two = learned(bed, given, "parallel.min_nodes=2", "parallel.max_nodes=2",
                  "parallel.shares=[2,1]")
    pairs = list(zip(one, two))
    tell("rollouts", "losses of two ranks beside those of one", steps=len(pairs), batch=given.batch,
         new_tokens=given.new_tokens, precision=given.precision,
         largest_loss=max(abs(a[0]) for a, _ in pairs),
         largest_difference=max(abs(a[0] - b[0]) for a, b in pairs),
         largest_difference_of_rewards=max(abs(a[1] - b[1]) for a, b in pairs),
         mean_reward=[one[0][1], one[-1][1]])


PARTS = {"rate": rate, "losses": losses}


def main():
    options = argparse.ArgumentParser(prog="rollouts", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", metavar="PART", help="rate, losses")
    add_shape(options, 64)
    options.set_defaults(precision="fp32")
    options.add_argument("--completions", type=int, default=512, help="of a step of rate")
    options.add_argument("--samples", type=int, default=4, help="completions of a prompt")
    options.add_argument("--new-tokens", type=int, default=48, help="of a completion, at most")
    options.add_argument("--slow-down", type=float, default=2)
    options.add_argument("--rate", default="1gbit", help="of each link, as tc spells it, or none")
    options.add_argument("--steps", type=int, default=3, help="that count, of each run of rate")
    options.add_argument("--learning-steps", type=int, default=50, help="of each run of losses")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    for part in given.parts or PARTS:
        if part not in PARTS:
            options.error(f"no part '{part}'; there are: {', '.join(PARTS)}")
    with Testbed({"fast": Node(core=0), "slow": Node(core=1)}, given.rate) as bed:
        make_prompts(bed)
        for part in given.parts or PARTS:
            PARTS[part](bed, given)


if __name__ == "__main__":
    main()
