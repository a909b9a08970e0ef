"""What chaos.py says at the end: figures as one JSON object, and for people."""
import re

from chaos_rules import absent
from chaos_world import NODES
from world import quantile


def phases(world, job):
    """Seconds that the run stood still, as its history has them."""
    seconds = {}
    for event in world.events(job):
        if event["text"].startswith("stood still"):
            for phase, each in re.findall(r"(\w+) ([\d.]+) s", event["text"].split(":", 1)[1]):
                seconds[phase] = round(seconds.get(phase, 0) + float(each), 2)
    return seconds


def by_kind(recoveries):
    """[(kind, number, median, worst)] of [(kind, seconds)]."""
    kinds = {}
    for kind, seconds in recoveries:
        kinds.setdefault(kind, []).append(seconds)
    return [(kind, len(each), quantile(each, 0.5), round(max(each), 3))
            for kind, each in sorted(kinds.items())]


def figures(world, job, watch, done, span, rates):
    """`done`: (fault, node, began, undone); `span`: when faults could be."""
    began, ended = span
    until = [at for _, _, at, _ in done[1:]] + [ended]
    quiet = watch.quiet_rates(rates, [(at, undone) for _, _, at, undone in done])
    recoveries = [(fault.kind, watch.standstill_after(at, end, quiet))
                  for (fault, _, at, _), end in zip(done, until)]
    present, had = watch.goodput(quiet, lambda at: set(NODES) - absent(done, at), ended)
    restarts = watch.restarts(ended)
    return {"minutes": round((ended - began) / 60, 2), "faults": len(done),
            "generations": int(world.job(job)["generation"]),
            "steps_a_second_before": {count: round(rates[count], 2) for count in (1, 2, 3)},
            "steps_a_second": {count: round(quiet[count], 2) for count in (1, 2, 3)},
            "goodput": present, "goodput_of_the_run": had, "restarts": len(restarts),
            "restart_s": round(sum(two - one for one, two in restarts), 1),
            "phases_s": phases(world, job), "recoveries_s": by_kind(recoveries),
            "accounts_s": watch.accounts(), "ended_by_themselves": world.ended}


def listed(seconds):
    return ", ".join(f"{name} {each}" for name, each in seconds.items())


def report(told):
    lines = [f"{told['faults']} faults in {told['minutes']} minutes; {told['steps']} steps in "
             f"{told['generations']} generations, {told['steps_repeated']} of them computed again; "
             "the model is equal to the bit to that of the undisturbed run", "",
             "fault            number  stood still after it, median   worst"]
    lines += [f"{kind:16} {number:6} {median:27.1f} s {worst:5.1f} s"
              for kind, number, median, worst in told["recoveries_s"]]
    lines += ["", f"restarts: {told['restarts']}, {told['restart_s']} s in all; in the history: "
              + listed(told["phases_s"]),
              f"goodput beyond restarts: {told['goodput']} of what the machines present could "
              f"give, {told['goodput_of_the_run']} of what those of the run could",
              f"seconds of workers: {listed(told['accounts_s'])}"]
    return "\n".join(lines)
