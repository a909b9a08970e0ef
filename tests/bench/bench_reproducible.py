#!/usr/bin/env python3
"""What `train.reproducible: true` costs: tokens/s with it and without, of one rank and of two, each
with one thread on a core of its own, by model.

Three kinds of run take turns: plain, with micro-batches of --micro-batch sequences; singles, plain
with a sequence in each, as reproducible runs have them; and reproducible. All with gradients in
fp32 on the wire, which reproducible runs replace by 64-bit integers; between two ranks lies a link
of --rate. The ratios are to the plain run of the same round; medians of rounds. One JSON line a
figure.
"""
import argparse
import statistics

from job_steps import Job, add_shape, tell
from testbed import Node, Testbed

WARM_UP = 3  # steps that do not count
KINDS = {"plain": (), "singles": ("batch.micro_batch=[1]",),
         "reproducible": ("batch.micro_batch=[1]", "train.reproducible=true")}
# Steps long enough to be seen one by one, and short enough to be many.
BATCHES = {"nano": 64, "17m": 16}


def tokens_per_second(bed, given, nodes, settings):
    names = ",".join(list(bed.nodes)[:nodes])
    with Job(bed, given, f"parallel.nodes=[{names}]", f"parallel.min_nodes={nodes}",
             "parallel.plan=fixed", *settings) as job:
        job.await_steps(WARM_UP + given.steps)
        return job.tokens_per_second(WARM_UP)


def compare(bed, given, nodes):
    rates = {kind: [] for kind in KINDS}
    for _ in range(given.rounds):
        for kind, settings in KINDS.items():
            rates[kind].append(tokens_per_second(bed, given, nodes, settings))
    def ratios(kind, beside):
        return [one / other for one, other in zip(rates[kind], rates[beside])]
    tell("reproducible", "tokens/s of a reproducible run over those of a plain one",
         model=given.model, batch=given.batch, sequence=given.sequence, precision=given.precision,
         ranks=nodes, rate=bed.rate if nodes > 1 else None,
         ratio=statistics.median(ratios("reproducible", "plain")),
         rounds=ratios("reproducible", "plain"),
         over_singles=statistics.median(ratios("reproducible", "singles")),
         tokens_per_second={kind: statistics.median(values) for kind, values in rates.items()})


def main():
    options = argparse.ArgumentParser(prog="reproducible", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    add_shape(options, None)
    options.set_defaults(model=None, precision="fp32")
    options.add_argument("--rate", default="1gbit", help="of each link, as tc spells it, or none")
    options.add_argument("--steps", type=int, default=15, help="that count, of each run")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    with Testbed({"left": Node(core=0), "right": Node(core=1)}, given.rate) as bed:
        for model in [given.model] if given.model else BATCHES:
            chosen = argparse.Namespace(**vars(given))
            chosen.model, chosen.batch = model, given.batch or BATCHES.get(model, 16)
            for nodes in (1, 2):
                compare(bed, chosen, nodes)


if __name__ == "__main__":
    main()
