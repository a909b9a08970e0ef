#!/usr/bin/env python3
"""SIGKILL for everything, again and again: `deploy/dev soak kills`.

--daemon N   espalierd is killed N times, in every state of a job in turn, sometimes twice in a row,
             and started again at once. Then: the job's history begins with all that was read before
             and numbers its events without a gap, nothing is told twice, and the job goes on to the
             end that it was meant to have, in as many generations as it was meant to have.
--parts N    an agent, mpirun, a worker, Open MPI's daemon or espalierd is killed N times while a job
             runs. Then: the job goes on, nothing of an earlier generation lives when a new one has
             started, and nothing at all when the job has been cancelled.
--workers N  a worker is killed N times while two of them train a model (worker_kills.py). Then: no
             committed step is computed again, and nothing stays in shared memory.
--rewards N  a worker is killed N times each while two of them sample, wait for rewards, and learn
             (reward_kills.py). Then: the model is that of a job that nobody disturbed, to the bit.
Real espalierd, agents, mpirun; but for --workers and --rewards, workers that train nothing. Prints a
JSON line each part and how long it took until espalierd answered, had its ranks again, or a step:
printed, not judged. Exit status 1: a rule did not hold; the folder with all logs is kept.
"""
import argparse
import json
import os
import random
import signal
import sys
import time

import world as worlds
from reward_kills import RewardKills
from worker_kills import WorkerKills
from world import Broken, alive, quantile

FOR_EVER = 10**9
SHORT = 300


def check_history(before, after):
    numbers = [int(event["number"]) for event in after]
    if numbers != list(range(1, len(after) + 1)):
        raise Broken(f"events are lost or doubled: {numbers}")
    if after[:len(before)] != before:
        raise Broken(f"the history has changed: {before} became {after[:len(before)]}")
    for one, next_one in zip(after, after[1:]):
        if (one["state"], one["text"]) == (next_one["state"], next_one["text"]):
            raise Broken(f"told twice: {one} {next_one}")


class DaemonKills:
    """Each method brings a job to a state, has espalierd killed there, and brings it to its end."""

    def __init__(self, world, seed):
        self.world, self.random = world, random.Random(seed)
        self.answered, self.controlled, self.kills, self.told = [], [], {}, 0

    def kill(self, job, wanted=None):
        world = self.world
        before, pids, state = world.events(job), world.ranks(job), world.job(job)["state"]
        if wanted not in (None, state):
            raise Broken(f"{job} is {state}, not {wanted}")
        for again in range(self.random.choice((1, 1, 1, 2))):
            if again and world.job(job)["state"] != state:
                break
            began = time.monotonic()
            self.answered.append(world.kill_daemon())
            if not any(self.frozen(pid) for pid in pids):
                world.until("the ranks attach again", lambda: world.under_control(job, pids))
            self.controlled.append(time.monotonic() - began)
            self.kills[state] = self.kills.get(state, 0) + 1
        check_history(before, world.events(job))
        self.told += len(before)

    @staticmethod
    def frozen(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] == "T"
        except OSError:
            return False

    def freeze(self, job, signal_number, pids=None):
        """Stopped ranks obey nothing, so that states on the way last."""
        pids = self.world.ranks(job) if pids is None else pids
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal_number)
        return pids

    def expect(self, job, state, generations):
        self.world.reach(job, state)
        check_history([], self.world.events(job))
        status = self.world.job(job)
        if int(status["generation"]) != generations:
            raise Broken(f"{job} took {status['generation']} generations, not {generations}: "
                         f"{self.world.events(job)}")

    def running(self, steps):
        job = self.world.submit(steps)
        self.world.reach(job, "RUNNING")
        return job

    def end_with(self, job, generations):
        """Lets it run to its last step, which is far: cancels it instead."""
        self.world.until("it goes on", lambda: self.world.job(job)["state"] == "RUNNING")
        step = int(self.world.job(job).get("step", 0))
        self.world.until("a new step", lambda: int(self.world.job(job).get("step", 0)) > step)
        self.world.ask("cancel", job)
        self.expect(job, "CANCELLED", generations)

    def queued(self):
        holder = self.running(FOR_EVER)
        job = self.world.submit(SHORT)
        self.world.reach(job, "QUEUED")
        self.kill(job, "QUEUED")
        self.world.ask("cancel", holder)
        self.expect(holder, "CANCELLED", 1)
        self.expect(job, "COMPLETED", 1)

    def launching(self):
        job = self.world.submit(SHORT)
        self.world.until("it is launched", lambda: self.world.job(job)["state"] != "QUEUED")
        time.sleep(self.random.choice((0, 0.1, 0.2)))
        held = [pid for pid in self.world.of_generation(job, 1) if worlds.name_of(pid) == "mpirun"]
        self.freeze(job, signal.SIGSTOP, held)
        self.kill(job)
        self.freeze(job, signal.SIGCONT, held)
        self.world.reach(job, "COMPLETED")
        check_history([], self.world.events(job))

    def run(self):
        job = self.running(SHORT)
        time.sleep(self.random.uniform(0, 1))
        self.kill(job)
        self.expect(job, "COMPLETED", 1)

    def pausing(self):
        job = self.running(FOR_EVER)
        pids = self.freeze(job, signal.SIGSTOP)
        self.world.ask("pause", job)
        self.kill(job, "PAUSING")
        self.freeze(job, signal.SIGCONT, pids)
        self.world.reach(job, "PAUSED_SOFT")
        self.world.ask("resume", job)
        self.end_with(job, 1)

    def pausing_hard(self):
        job = self.running(FOR_EVER)
        pids = self.freeze(job, signal.SIGSTOP)
        self.world.ask("pause", "--hard", job)
        self.kill(job, "PAUSING")
        self.freeze(job, signal.SIGCONT, pids)
        self.world.reach(job, "PAUSED_HARD")
        self.world.ask("resume", job)
        self.end_with(job, 2)

    def paused_soft(self):
        job = self.running(FOR_EVER)
        self.world.ask("pause", job)
        self.world.reach(job, "PAUSED_SOFT")
        self.kill(job, "PAUSED_SOFT")
        self.world.ask("resume", job)
        self.end_with(job, 1)

    def paused_hard(self):
        job = self.running(FOR_EVER)
        self.world.ask("pause", "--hard", job)
        self.world.reach(job, "PAUSED_HARD")
        self.kill(job, "PAUSED_HARD")
        self.world.ask("resume", job)
        self.end_with(job, 2)

    def recovering(self):
        job = self.world.submit(FOR_EVER, backoff=5)
        self.world.reach(job, "RUNNING")
        os.kill(self.random.choice(self.world.ranks(job)), signal.SIGKILL)
        self.world.reach(job, "RECOVERING")
        self.kill(job, "RECOVERING")
        self.end_with(job, 2)

    def cancelling(self):
        job = self.running(FOR_EVER)
        pids = self.freeze(job, signal.SIGSTOP)
        self.world.ask("cancel", job)
        self.kill(job, "CANCELLING")
        self.freeze(job, signal.SIGCONT, pids)
        self.expect(job, "CANCELLED", 1)

    def ending(self):
        job = self.world.submit(40)
        self.world.until("it runs", lambda: self.world.job(job)["state"] not in
                         ("QUEUED", "LAUNCHING"))
        time.sleep(self.random.uniform(0, 0.4))
        self.kill(job)
        self.world.reach(job, "COMPLETED")
        check_history([], self.world.events(job))

    def regrouping(self):
        world = self.world
        job = world.submit(FOR_EVER, nodes="{min_nodes: 1, max_nodes: 2}")
        world.reach(job, "RUNNING")
        pids = self.freeze(job, signal.SIGSTOP)
        world.write_cluster(["left"])
        world.kill_daemon()
        world.reach(job, "REGROUPING")
        self.kill(job, "REGROUPING")
        self.freeze(job, signal.SIGCONT, pids)
        self.end_with(job, 2)
        world.write_cluster(worlds.NODES)
        world.kill_daemon()
        world.await_agents()

    def all(self, count):
        rounds = [self.queued, self.launching, self.run, self.pausing, self.pausing_hard,
                  self.paused_soft, self.paused_hard, self.recovering, self.cancelling, self.ending,
                  self.regrouping]
        turn = 0
        while sum(self.kills.values()) < count:
            rounds[turn % len(rounds)]()
            turn += 1
        return {"soak": "kills of espalierd", "kills": self.kills, "rounds": turn,
                "events_compared": self.told, "lost_or_doubled": 0,
                "answers_s": [quantile(self.answered, share) for share in (0.5, 0.99, 1)],
                "control_back_s": [quantile(self.controlled, share) for share in (0.5, 0.99, 1)]}


class PartKills:
    def __init__(self, world, seed):
        self.world, self.random = world, random.Random(seed)
        self.kills, self.recoveries = {}, []

    def victim(self, job, generation):
        """(what, pid) of a process of this world."""
        world, kinds = self.world, {}
        for pid in world.of_generation(job, generation):
            name = worlds.name_of(pid)
            kinds.setdefault({"orted": "Open MPI's daemon", "prted": "Open MPI's daemon",
                              "stub_worker": "worker"}.get(name, name), []).append(pid)
        for agent in world.agents.values():
            kinds.setdefault("agent", []).append(agent.pid)
        kinds["espalierd"] = [world.daemon.pid]
        wanted = [kind for kind in ("agent", "mpirun", "worker", "Open MPI's daemon", "espalierd")
                  if kind in kinds]
        kind = self.random.choice(wanted)
        return kind, self.random.choice(kinds[kind])

    def kill(self, job):
        world = self.world
        world.reach(job, "RUNNING")
        world.until("ranks", lambda: len(world.ranks(job)) == 2)
        time.sleep(self.random.uniform(0, 0.5))
        generation = int(world.job(job)["generation"])
        kind, pid = self.victim(job, generation)
        began = time.monotonic()
        if kind == "espalierd":
            world.kill_daemon()
        else:
            os.kill(pid, signal.SIGKILL)
        if kind == "agent":
            node = next(name for name, agent in world.agents.items() if agent.pid == pid)
            world.agents[node].wait()
            world.start_agent(node)
        if kind in ("agent", "espalierd"):
            step = int(world.job(job).get("step", 0))
            world.until("steps go on", lambda: int(world.job(job).get("step", 0)) > step + 10)
        else:
            world.until("a new generation", lambda: int(world.job(job)["generation"]) > generation
                        and world.job(job)["state"] == "RUNNING")
            self.recoveries.append(time.monotonic() - began)
            left = [pid for pid in world.of_generation(job, generation) if alive(pid)]
            if left:
                raise Broken(f"generation {generation} of {job} has {left} beside its successor")
        self.kills[kind] = self.kills.get(kind, 0) + 1

    def all(self, count):
        strays = 0
        for begun in range(0, count, 10):
            job = self.world.submit(FOR_EVER)
            for _ in range(min(10, count - begun)):
                self.kill(job)
            self.world.ask("cancel", job)
            self.world.reach(job, "CANCELLED")
            check_history([], self.world.events(job))
            time.sleep(1)  # a process that was told to end may take a moment to do so
            left = self.world.others()
            strays += len(left)
            for pid, known in left:
                print(f"stray process {pid}: {known[:300]}", file=sys.stderr)
        if strays:
            raise Broken(f"{strays} stray processes")
        return {"soak": "kills of parts", "kills": self.kills, "strays": strays,
                "next_generation_runs_s": [quantile(self.recoveries, s) for s in (0.5, 0.99, 1)]}


def play(worker, run, seed):
    one_machine = dict.fromkeys(worlds.NODES, "127.0.0.1")
    trains = worker != worlds.STUB
    world = worlds.World(addresses=one_machine if trains else None, worker=worker)
    held = False
    try:
        print(json.dumps(run(world)), flush=True)
        held = True
    except Broken as error:
        world.tell_of_jobs()
        sys.exit(f"{error}\nseed {seed}; everything is in {world.folder}")
    finally:
        world.close(keep=not held)


def main():
    options = argparse.ArgumentParser(prog="kills", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--daemon", type=int, default=200)
    options.add_argument("--parts", type=int, default=200)
    options.add_argument("--workers", type=int, default=0)
    options.add_argument("--rewards", type=int, default=0)
    options.add_argument("--model", default="nano", help="preset that --workers trains")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    chance = random.Random(given.seed)
    parts = [(given.daemon, worlds.STUB, lambda world: DaemonKills(world, given.seed)),
             (given.parts, worlds.STUB, lambda world: PartKills(world, given.seed)),
             (given.workers, worlds.BIN / "espalier-worker",
              lambda world: WorkerKills(world, chance, given.model)),
             (given.rewards, worlds.BIN / "espalier-worker",
              lambda world: RewardKills(world, chance))]
    for count, worker, part in parts:
        if count > 0:
            play(worker, lambda world: part(world).all(count), given.seed)


if __name__ == "__main__":
    main()
