#!/usr/bin/env python3
"""A run on three machines that everything happens to: `deploy/dev chaos --minutes N --seed S`.

espalierd, agents that have joined, mpirun and workers are the real ones, each machine a network
namespace with a link of 1 Gb/s, a disk and a clock of its own (machines.py). Every so often a fault
that the seed draws (chaos_faults.py) is done to a machine and undone again before the next one. The
job is reproducible (train.reproducible), its plan measured; it goes on with whatever is left of its
nodes. Then:
* the job is COMPLETED, and its last checkpoint, on every disk that has it, is equal to the bit to
  that of the same job when nobody disturbs it;
* no committed step is computed again, but where every machine that had it was out of reach;
* nothing of it is left running, or in shared memory;
* no second of a worker is in two accounts of espalierd's.
Prints how long the run stood still after each kind of fault, the goodput account (chaos_watch.py
says what goodput is), and a JSON line. Exit status 1: a rule did not hold; the folder with all logs
is kept. Needs root, Linux, iproute2.
"""
import argparse
import contextlib
import json
import signal
import sys
import time

import chaos_rules as rules
from chaos_faults import KINDS, Faults, draw
from chaos_report import figures, report
from chaos_watch import Watch
from chaos_world import NODES, ChaosWorld
from world import FINAL, Broken

JOB = """
name: NAME
model: {preset: MODEL}
data: {path: FOLDER/data, sequence_length: 64}
train:
  {steps: STEPS, global_batch: 24, reproducible: true, schedule: {kind: constant, warmup_steps: 0}}
parallel: {nodes: [AMONG], min_nodes: LEAST, max_nodes: MOST, plan: measured}
checkpoint: {every_steps: EVERY, copies: 2}
evaluate: {every_steps: 0, max_sequences: 8}
health: {failure_timeout_seconds: 4, max_restarts: 100000, restart_backoff_seconds: 0.1}
launch: {threads: 1}
"""
LONGEST = 0.6  # of the time from one fault to the next
LEAST_LOST = 2  # seconds
# Without a new step, when nothing is done to it any more. A machine that has failed often is set
# aside, but never the last one.
PATIENCE = 300


class Chaos:
    def __init__(self, world, given):
        self.world, self.given = world, given
        self.done = []  # (fault, began, undone)
        self.watch, self.every = None, 1000

    def say(self, text):
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    def submit(self, name, steps, nodes=NODES, least=1):
        text = JOB
        for word, value in (("NAME", name), ("MODEL", self.given.model), ("STEPS", steps),
                            ("AMONG", ", ".join(nodes)), ("LEAST", least),
                            ("MOST", len(nodes)), ("EVERY", self.every)):
            text = text.replace(word, str(value))
        return self.world.ask("submit", str(self.world.write(f"{name}.yaml", text)))["job_id"]

    def step(self, job):
        return int(self.world.job(job).get("step", 0))

    def rate(self, count):
        """Steps a second of a job on so many nodes."""
        job = self.submit(f"rate-on-{count}", 10**9, NODES[:count], count)
        self.world.until("its first steps", lambda: self.step(job) > 5, PATIENCE)
        first, began = self.step(job), time.monotonic()
        time.sleep(min(20.0, 3 * self.given.minutes))
        self.world.until("more steps", lambda: self.step(job) > first + 5, PATIENCE)
        steps, seconds = self.step(job) - first, time.monotonic() - began
        self.world.ask("cancel", job)
        self.world.reach(job, "CANCELLED")
        return steps / seconds

    def rates(self):
        rates = {count: self.rate(count) for count in (1, 2, 3)}
        self.say("steps a second on 1, 2, 3 nodes that nobody disturbs: "
                 + ", ".join(f"{rate:.1f}" for rate in rates.values()))
        return {0: 0.0, **rates}

    # --- the disturbed run --------------------------------------------------------------------
    def wait(self, until):
        """False: the job is over."""
        while time.monotonic() < until and self.watch.state not in FINAL:
            self.world.keep_up()
            time.sleep(0.1)
        return self.watch.state not in FINAL

    def disturb(self, end):
        faults, drawn = Faults(self.world), draw(self.given.seed, self.given.kinds)
        begins = time.monotonic()
        while self.wait(begins) and begins + self.given.every <= end:
            fault = next(drawn)
            now = time.monotonic()
            seconds = fault.share * LONGEST * self.given.every
            did = faults.do(fault)
            if did is None:
                self.say(f"step {self.watch.step:6}: {fault.kind}: nothing there")
            else:
                where, undo = did
                self.say(f"step {self.watch.step:6}: {fault.kind} {where} for {seconds:.1f} s")
                try:
                    self.wait(now + seconds)
                finally:
                    undo()
                node = where.split()[0]
                self.done.append((fault, node, now, time.monotonic()))
            begins += self.given.every

    def finish(self):
        while self.wait(time.monotonic() + 1):
            if self.watch.silent() > PATIENCE:
                raise Broken(f"no step for {PATIENCE} s after the last fault")

    def disturbed(self, steps):
        job = self.submit("chaos", steps)
        self.watch = Watch(self.world, job)
        try:
            self.world.until("it begins", lambda: self.watch.step > 5, PATIENCE)
            began = time.monotonic()
            self.disturb(began + 60 * self.given.minutes)
            ended = time.monotonic()
            self.say(f"step {self.watch.step:6}: no more faults")
            self.finish()
            time.sleep(2)  # for the last accounts
        finally:
            self.watch.end()
        self.world.until("espalierd answers", self.world.answers)
        self.world.reach(job, "COMPLETED")
        return job, (began, ended)

    # --- all of it ----------------------------------------------------------------------------
    def all(self):
        rates = self.rates()
        # Few are left when the time is over, and it is not over before the time: a fault takes at
        # least so much of it as a rule.
        moving = max(0.5, 1 - LEAST_LOST / self.given.every)
        steps = max(100, int(rates[3] * 60 * self.given.minutes * moving))
        self.every = max(20, int(rates[3] * min(60, self.given.every)))
        job, span = self.disturbed(steps)
        repeated = rules.steps_repeated(self.world, job, self.watch, self.done)
        rules.booked_once(self.watch)
        for node in NODES:
            self.world.ask("nodes", "allow", node)
        self.compare(job, steps, rates)
        rules.nothing_is_left(self.world)
        return {"soak": "chaos", "seed": self.given.seed, "model": self.given.model, "steps": steps,
                "equal_to_the_bit": True, "steps_repeated": repeated, "left": 0,
                **figures(self.world, job, self.watch, self.done, span, rates)}

    def compare(self, job, steps, rates):
        """With the same job on as many nodes as are fastest here: their number changes no bit."""
        self.say("the same job, undisturbed")
        nodes = max(rates, key=rates.get)
        alone = self.submit("undisturbed", steps, NODES[:nodes], nodes)
        self.world.reach(alone, "COMPLETED", PATIENCE + 10 * steps / rates[nodes])
        ended, expected = (rules.last_model(self.world, each, steps) for each in (job, alone))
        if ended != expected:
            raise Broken(f"{job} ended with other bits than {alone}: {ended}, not {expected}")


def options():
    kinds = "\n".join(f"  {kind:15} {what}" for kind, (what, _) in KINDS.items())
    parser = argparse.ArgumentParser(prog="deploy/dev chaos", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=f"kinds:\n{kinds}")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=60, help="seconds from fault to fault")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which faults, as cut,sleep")
    parser.add_argument("--model", default="nano", help="preset")
    parser.add_argument("--least-goodput", type=float, default=0, help="less is a failure: 0.9")
    given = parser.parse_args()
    given.kinds = given.kinds.split(",")
    unknown = [kind for kind in given.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"no kind {', '.join(unknown)}; there are: {', '.join(KINDS)}")
    return given


def main():
    given, held = options(), False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # through what cleans up
    world = ChaosWorld()
    try:
        told = Chaos(world, given).all()
        print(report(told), json.dumps(told), sep="\n", flush=True)
        if (told["goodput"] or 0) < given.least_goodput:
            raise Broken(f"goodput is {told['goodput']}, less than {given.least_goodput}")
        held = True
    except Broken as error:
        sys.exit(f"{error}\nseed {given.seed}; again: deploy/dev chaos --minutes {given.minutes:g} "
                 f"--seed {given.seed} --every {given.every:g} --kinds {','.join(given.kinds)} "
                 f"--model {given.model}\neverything is in {world.folder}")
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            world.close(keep=not held)


if __name__ == "__main__":
    main()
