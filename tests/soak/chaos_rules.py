"""What must hold when chaos.py is through: the model's bits, what was computed again, what is left,
and what espalierd booked.
"""
import hashlib
import re

from chaos_world import NODES
from world import Broken

SLACK = 1.0  # WorkerTally::kSlack: what may be booked too early
MODEL = ("model.safetensors", "optimizer.safetensors")


def absent(done, at):
    """Nodes that a fault holds away. `done`: (fault, node, began, undone)."""
    return {node for fault, node, began, undone in done if fault.away and began <= at < undone}


def last_model(world, job, steps):
    """Hashes of its last checkpoint, the same on every disk that has it."""
    found = {}
    for name in NODES:
        jobs = world.machines[name].disk / "espalierd" / "jobs"
        folder = jobs / job / "checkpoints" / f"step-{steps:08d}"
        if folder.is_dir():
            found[name] = tuple(hashlib.sha256((folder / file).read_bytes()).hexdigest()
                                for file in MODEL)
    if len(set(found.values())) != 1:
        raise Broken(f"the last checkpoint of {job}: {found}")
    return next(iter(found.values()))


def steps_repeated(world, job, watch, done):
    """Each time without a machine that had them and that no fault of the time was done to."""
    total = 0
    for event in world.events(job):
        back = re.match(r"runs on .*\(generation (\d+)\); goes back from step (\d+).*: (\d+)$",
                        event["text"])
        if not back:
            continue
        generation, before, count = map(int, back.groups())
        earlier = [each for each in watch.nodes if each < generation]
        holders = set(watch.nodes[max(earlier)]) if earlier else set()
        span = [(one.at, two.at) for one, two in watch.gaps() if one.step >= before - 1]
        began, ended = span[0] if span else (0, 0)
        reached = holders - {node for _, node, did, undone in done
                             if did < ended and undone > began}
        if reached or not holders:
            raise Broken(f"{job} went back from step {before} though {sorted(reached)} had it: "
                         f"{event['text']}")
        total += count
    return total


def booked_once(watch):
    """No rank has more seconds than the job was there for."""
    most = watch.advances[-1].at - watch.began + 5
    for rank, seconds in watch.booked().items():
        if seconds > most + SLACK * len(watch.lives):
            raise Broken(f"rank {rank} has {seconds:.1f} s in accounts, of {most:.1f} s")


def nothing_is_left(world):
    def in_memory():
        return [str(path) for machine in world.machines.values()
                for path in machine.memory.iterdir()]
    world.until("its processes end", lambda: not world.strays(), 30)
    try:
        world.until("memory is given back", lambda: not in_memory())
    except Broken as error:
        raise Broken(f"{error}: {in_memory()}") from error
