"""The faults of chaos.py: drawn by a seed, done to a machine (machines.py) for a while, and undone.

A seed gives the same faults in the same order on the same machines for the same shares of the
longest duration; what processes do meanwhile is not repeated.
"""
import dataclasses
import json
import random
import signal

from chaos_world import CONTROL, NODES
from machines import RATE, send, start_of

FAR_OFF = 3600  # espalierd uses no node whose clock is so far off
# Seconds; certificates are good from an hour before they are made, so that none is beyond that.
CLOCK_SHIFTS = (-3000, -7, 7, 3000, 7200)
RATES = ("2mbit", "10mbit", "50mbit")
# What each does, and whether its machine is away until it is undone.
KINDS = {
    "kill-worker": ("SIGKILL for a rank", False),
    "kill-agent": ("SIGKILL for the agent, which is started again at the end", False),
    "kill-mpirun": ("SIGKILL for mpirun", False),
    "kill-orted": ("SIGKILL for Open MPI's daemon", False),
    "kill-espalierd": ("SIGKILL for espalierd, which is started again at the end", False),
    "stop-worker": ("SIGSTOP for a rank", True),
    "stop-agent": ("SIGSTOP for the agent", False),
    "cut": ("the cable is out", True),
    "deaf": ("what others send to it is lost", True),
    "mute": ("what it sends is lost", True),
    "slow": ("its link has a rate of 2 to 50 Mb/s", True),
    "disk": ("its disk, or espalierd's, is full", False),
    "clock": ("its clock, or espalierd's, is 50 minutes off, 7 s, or two hours", False),
    "sleep": ("all its processes are stopped, and its cable is out", True),
    "notice": ("its system says that it is about to sleep", True),
}


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str
    node: str  # where there is nothing of what is looked for: the next one
    share: float  # of the longest duration
    size: float  # 0 to 1: which of the sizes
    control: bool  # a disk or a clock: of espalierd's machine

    @property
    def away(self):
        far = self.kind == "clock" and abs(self.pick(CLOCK_SHIFTS)) >= FAR_OFF
        return KINDS[self.kind][1] or (far and self.where != CONTROL)

    @property
    def where(self):
        control = self.control and self.kind in ("disk", "clock")
        return CONTROL if control else self.node

    def pick(self, values):
        return values[int(self.size * len(values))]


def draw(seed, kinds):
    """Without end; every kind once before any comes again."""
    chance = random.Random(seed)
    while True:
        for kind in chance.sample(kinds, len(kinds)):
            yield Fault(kind, chance.choice(NODES), chance.uniform(0.2, 1), chance.random(),
                        chance.random() < 0.25)


class Faults:
    """Each method does a fault and returns (machine, what undoes it), or None: it found nothing."""

    def __init__(self, world):
        self.world = world

    def do(self, fault):
        return getattr(self, fault.kind.replace("-", "_"))(fault)

    def first(self, fault, program, word=""):
        """(machine, [process]) from the fault's machine on."""
        begin = NODES.index(fault.node)
        for node in NODES[begin:] + NODES[:begin]:
            found = self.world.machines[node].processes(program, word)
            if found:
                return node, [(found[0], start_of(found[0]))]
        return None

    def rank(self, fault):
        return self.first(fault, "espalier-worker", "--rank-count")

    def killed(self, found):
        if found is None:
            return None
        send(signal.SIGKILL, found[1])
        return found[0], lambda: None

    def stopped(self, where, processes):
        send(signal.SIGSTOP, processes)
        return where, lambda: send(signal.SIGCONT, processes)

    def restarted(self, name):
        self.world.kill(name)
        return name, lambda: self.world.start(name)

    def machine(self, fault):
        return self.world.machines[fault.where]

    def kill_worker(self, fault):
        return self.killed(self.rank(fault))

    def kill_orted(self, fault):
        return self.killed(self.first(fault, "orted") or self.first(fault, "prted"))

    def kill_mpirun(self, _):
        control = self.world.machines[CONTROL]
        found = control.processes("mpirun") or control.processes("prterun")
        return self.killed((CONTROL, [(pid, start_of(pid)) for pid in found]) if found else None)

    def kill_agent(self, fault):
        return self.restarted(fault.node)

    def kill_espalierd(self, _):
        return self.restarted(CONTROL)

    def stop_worker(self, fault):
        found = self.rank(fault)
        return self.stopped(*found) if found else None

    def stop_agent(self, fault):
        pid = self.world.processes[fault.node].pid
        return self.stopped(fault.node, [(pid, start_of(pid))])

    def cut(self, fault):
        self.machine(fault).cut()
        return fault.where, self.machine(fault).mend

    def deaf(self, fault):
        machine = self.machine(fault)
        machine.deafen()
        return fault.where, lambda: machine.slow(RATE)

    def mute(self, fault):
        self.machine(fault).mute()
        return fault.where, self.machine(fault).unmute

    def slow(self, fault):
        machine = self.machine(fault)
        machine.slow(fault.pick(RATES))
        return f"{fault.where} ({fault.pick(RATES)})", lambda: machine.slow(RATE)

    def disk(self, fault):
        self.machine(fault).fill()
        return fault.where, self.machine(fault).empty

    def clock(self, fault):
        machine, shift = self.machine(fault), fault.pick(CLOCK_SHIFTS)
        machine.set_clock(shift)
        return f"{fault.where} ({shift:+d} s)", lambda: machine.set_clock(0)

    def sleep(self, fault):
        machine = self.machine(fault)
        stopped = machine.sleep()
        return fault.where, lambda: machine.wake(stopped)

    def notice(self, fault):
        path = self.machine(fault).disk / "condition"
        path.write_text(json.dumps({"aboutToSleep": True}))
        return fault.where, lambda: path.unlink(missing_ok=True)
