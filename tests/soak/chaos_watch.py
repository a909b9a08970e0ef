"""What a job does while chaos.py disturbs it, as espalierd's metrics tell it four times a second,
and the account of it.

Goodput: the steps that the run committed, as a part of those that the machines present could have
committed meanwhile, beyond restart time. That is

    steps committed / integral of rate(number of nodes present) over the time

where a node is present unless a fault holds it away, and neither steps nor time of restarts count:
from the last step that was seen of a generation to the first of the next. A node that is back is
present from that instant, whether the run has taken it in again or not. Each step counts once.
rate(n) is the steps a second of a run on n nodes that nobody disturbs: of this one while nothing
was done to it, for what else the machine has to do changes. For a number of nodes that it had too
shortly it is what was measured before, times what the others changed by. The second figure is the
same by the nodes that the run had: what is lost there was lost by slow steps.
"""
import dataclasses
import re
import time

from chaos_world import CONTROL, Thread

INTERVAL = 0.25
# Seconds after which a fault that was undone, or a start, is over.
SETTLED = 5
ENOUGH = 10  # seconds from which a rate is told
ACCOUNTS = ("compute", "exchange_wait", "data_wait", "rollout", "reward", "checkpoint", "paused",
            "recovering", "idle")


@dataclasses.dataclass(frozen=True)
class Advance:
    """A step that was not seen before."""
    at: float
    step: int
    generation: int
    nodes: tuple


class Watch:
    def __init__(self, world, job):
        self.world, self.job = world, job
        self.series = re.compile(rf'^espalier_(\w+)\{{([^}}]*job="{job}"[^}}]*)\}} (\S+)$',
                                 re.MULTILINE)
        self.state, self.generation, self.advances, self.nodes = None, 0, [], {}
        self.lives = {}  # of espalierd: accounts as it told them last
        self.began = time.monotonic()
        self.thread = Thread(self.look, world.enter_control, INTERVAL)

    def look(self):
        life, text = self.world.processes[CONTROL].pid, self.world.metrics()
        now = time.monotonic()
        if text is None:
            return
        step, generation, nodes = 0, 0, {}
        for name, labels, value in self.series.findall(text):
            label = dict(re.findall(r'(\w+)="(.*?)"', labels))
            if name == "job_step":
                step = int(float(value))
            elif name == "job_generation":
                generation = int(float(value))
            elif name == "job_state" and float(value) == 1:
                self.state = label["state"].upper()
            elif name == "worker_shard_sequences":
                nodes[label["rank"]] = label["node"]
            elif name == "worker_account_seconds_total":
                key = (label["rank"], label["account"])
                self.lives.setdefault(life, {})[key] = float(value)
        if nodes:
            self.nodes[generation] = tuple(sorted(nodes.values()))
        if self.state == "RUNNING":  # one that starts has committed nothing
            self.generation = generation
        if step > self.step:
            nodes = self.nodes.get(self.generation, ())
            self.advances.append(Advance(now, step, self.generation, nodes))

    @property
    def step(self):
        return self.advances[-1].step if self.advances else 0

    def silent(self):
        """Seconds without a new step."""
        return time.monotonic() - (self.advances[-1].at if self.advances else self.began)

    def end(self):
        self.thread.end()

    # --- the account --------------------------------------------------------------------------
    def gaps(self):
        """Each advance with the one after it."""
        return list(zip(self.advances, self.advances[1:]))

    def restarts(self, until):
        return [(one.at, two.at) for one, two in self.gaps()
                if one.generation != two.generation and one.at < until]

    def standstill_after(self, began, ended, rates):
        """The longest time without a new step that began in the span or before it, by more than
        what lies between two steps: else it is of what came next. What nobody saw because espalierd
        was away was none, when the steps were done by then."""
        longest = 0.0
        for one, two in self.gaps():
            rate = rates[max(1, len(one.nodes))]
            if two.at <= began or min(two.at, ended) - one.at < 2 * INTERVAL + 1 / rate:
                continue
            expected = rate * (two.at - one.at)
            if one.generation != two.generation or two.step - one.step < expected / 2:
                longest = max(longest, two.at - max(one.at, began))
        return longest

    def quiet_rates(self, measured, faults):
        """Steps a second by number of nodes; `measured` before, faults as (began, undone)."""
        begun, steps, seconds = {}, {}, {}
        for one, two in self.gaps():
            settled = begun.setdefault(one.generation, one.at) + SETTLED
            if one.generation != two.generation or not one.nodes or one.at < settled or any(
                    began <= two.at and one.at < undone + SETTLED for began, undone in faults):
                continue
            count = len(one.nodes)
            steps[count] = steps.get(count, 0) + two.step - one.step
            seconds[count] = seconds.get(count, 0) + two.at - one.at
        expected = sum(measured[count] * each for count, each in seconds.items())
        change = sum(steps.values()) / expected if expected else 1
        return {count: steps[count] / seconds[count] if seconds.get(count, 0) >= ENOUGH
                else rate * change for count, rate in measured.items()}

    def goodput(self, rates, present, until):
        """(by the nodes present, by those that the run had), of what was seen before an instant."""
        steps, could, had = 0, 0.0, 0.0
        for one, two in self.gaps():
            if one.generation != two.generation or two.at > until:
                continue
            steps += two.step - one.step
            slices = max(1, round((two.at - one.at) / 0.1))
            width = (two.at - one.at) / slices
            for number in range(slices):
                could += width * rates[len(present(one.at + (number + 0.5) * width))]
            had += rates[len(two.nodes) or len(one.nodes)] * (two.at - one.at)
        return [round(steps / each, 3) if each else None for each in (could, had)]

    def accounts(self):
        """Seconds of all workers by account, over all lives of espalierd, which forgets them."""
        return {account: round(sum(seconds for told in self.lives.values()
                                   for (_, name), seconds in told.items() if name == account), 1)
                for account in ACCOUNTS}

    def booked(self):
        """Seconds by rank."""
        ranks = {}
        for told in self.lives.values():
            for (rank, _), seconds in told.items():
                ranks[rank] = ranks.get(rank, 0) + seconds
        return ranks
