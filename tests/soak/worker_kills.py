"""SIGKILL for workers that train: `deploy/dev soak kills --workers N`, a part of kills.py.

Two nodes of one machine, with agents, train a real model, without a checkpoint before the end; N
times, at a random instant, one of the two workers is killed. Then: the next generation begins with
the step that was committed, or a later one; at the end, the model is equal to the bit to that of a
run that nobody disturbed (by a plan that does not change), and nothing is left in shared memory.
Measured: from the kill to the first step committed after it.
"""
import hashlib
import os
import pathlib
import re
import signal
import subprocess
import time

from world import BIN, Broken, quantile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
JOB = """
name: NAME
model: {preset: MODEL}
data: {path: DATA, sequence_length: 64}
train: {steps: STEPS, global_batch: 8, schedule: {kind: constant, warmup_steps: 0}}
batch: {micro_batch: [4]}
parallel: {min_nodes: LEAST, max_nodes: 2, plan: fixed}
checkpoint: {every_steps: 0}
evaluate: {every_steps: 0, max_sequences: 8}
health: {failure_timeout_seconds: 10, max_restarts: 100000, restart_backoff_seconds: 0.1}
launch: {threads: 1}
"""


class Trained:
    """Jobs that train, for WorkerKills and RewardKills."""

    def __init__(self, world):
        self.world = world

    def submit_text(self, name, text, values):
        for word, value in values.items():
            text = text.replace(word, str(value))
        path = self.world.folder / f"{name}.yaml"
        path.write_text(text)
        return self.world.ask("submit", str(path))["job_id"]

    def step(self, job):
        return int(self.world.job(job).get("step", 0))

    def told(self, job, pattern):
        return [event["text"] for event in self.world.events(job)
                if re.match(pattern, event["text"])]

    def await_next_generation(self, job, generation, committed):
        """Until it has committed a step, having begun at the one that was committed or later."""
        runs = rf"runs on .* from step (\d+) \(generation {generation + 1}\)(.*)"
        self.world.until("the next generation", lambda: self.told(job, runs))
        start, rest = re.match(runs, self.told(job, runs)[0]).groups()
        if int(start) < committed or "goes back" in rest:
            raise Broken(f"{job} had committed step {committed}: {self.told(job, runs)}")
        self.world.until("a new step", lambda: self.step(job) > int(start))

    def checkpoints(self, job):
        return list((self.world.state / "jobs" / job / "checkpoints").glob("step-*"))

    def newest_model(self, job):
        model = max(self.checkpoints(job)) / "model.safetensors"
        return hashlib.sha256(model.read_bytes()).hexdigest()

    def steps_when_told_to_end(self, job):
        """Ends it with a checkpoint: how many steps that holds."""
        world = self.world
        world.ask("checkpoint", job)
        world.until("a checkpoint", lambda: self.checkpoints(job))
        world.ask("cancel", job)
        world.reach(job, "CANCELLED")
        return int(max(self.checkpoints(job)).name.split("-")[1])

    def model_at_the_end(self, job):
        """Of a job that ends by itself, as long as it gets on, however busy the machine is."""
        def has_ended():
            return self.world.job(job)["state"] == "COMPLETED"

        while not has_ended():
            before = self.step(job)
            self.world.until("a step", lambda: has_ended() or self.step(job) > before, 600)
        return self.newest_model(job)


class WorkerKills(Trained):
    def __init__(self, world, chance, model):
        super().__init__(world)
        self.random, self.model = chance, model
        self.recoveries, self.phases = [], {}
        self.data = world.folder / "text"
        done = subprocess.run(
            [BIN / "espalier-worker", "data", "prepare", "--output", self.data,
             *sorted(REPOSITORY.glob("*/*/*.md"))], capture_output=True, text=True)
        if done.returncode != 0:
            raise Broken(f"data prepare: {done.stderr}")

    def submit(self, name, steps, least=2):
        return self.submit_text(name, JOB, {"NAME": name, "MODEL": self.model, "DATA": self.data,
                                            "STEPS": steps, "LEAST": least})

    def kill(self, job, within=1.0):
        """At a random instant within so many seconds."""
        world = self.world
        world.until("both ranks train", lambda: world.job(job)["state"] == "RUNNING" and
                    len(world.ranks(job)) == 2)
        first = self.step(job)
        world.until("two steps", lambda: self.step(job) >= first + 2)
        time.sleep(self.random.uniform(0, within))
        generation = int(world.job(job)["generation"])
        victim = self.random.choice(world.ranks(job))
        before = self.step(job)
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        self.await_next_generation(job, generation, before)
        self.recoveries.append(time.monotonic() - began)
        for phase, seconds in re.findall(r"(\w+) ([\d.]+) s", self.told(job, "stood still")[-1]
                                         .split(":", 1)[1]):
            self.phases.setdefault(phase, []).append(float(seconds))

    def leave(self):
        """A drained node is left with what the other one has in memory, without a checkpoint."""
        world, job = self.world, self.submit("moved", 10**9, least=1)
        world.until("both ranks train", lambda: len(world.ranks(job)) == 2 and self.step(job) > 5)
        world.until("the agents tell of its memory", lambda: all(
            any(warm["job_id"] == job and int(warm.get("step", 0)) > 0
                for warm in node.get("report", {}).get("warm", []))
            for node in world.ask("nodes")["nodes"]))
        before = self.step(job)
        world.ask("nodes", "drain", "left")
        runs = r"runs on right from step (\d+) (.*)"
        world.until("it goes on", lambda: self.told(job, runs))
        start, rest = re.match(runs, self.told(job, runs)[0]).groups()
        if int(start) < before or "goes back" in rest:
            raise Broken(f"{job} had committed step {before}: {self.told(job, runs)}")
        if self.checkpoints(job):
            raise Broken(f"{job} wrote a checkpoint to leave a node")
        world.ask("nodes", "allow", "left")
        world.ask("cancel", job)
        world.reach(job, "CANCELLED")

    def all(self, count):
        job = self.submit("disturbed", 10**9)
        for _ in range(count):
            self.kill(job)
        self.world.ask("cancel", job)
        self.world.reach(job, "CANCELLED")
        self.leave()
        # A shorter run of the same kind is compared to the bit with one that nobody disturbs.
        disturbed = self.submit("compared", 10**9)
        for _ in range(3):
            self.kill(disturbed, within=0.1)
        undisturbed = self.submit("undisturbed", self.steps_when_told_to_end(disturbed))
        if self.newest_model(disturbed) != self.model_at_the_end(undisturbed):
            raise Broken("the disturbed run has another model")
        warm = self.world.state / "warm"
        self.world.until("the memory is given back", lambda: not list(warm.glob("espalier-*")))
        return {"soak": "kills of workers that train", "model": self.model,
                "kills": len(self.recoveries), "committed_steps_lost": 0, "equal_to_the_bit": True,
                "next_step_s": [quantile(self.recoveries, share) for share in (0.5, 0.99, 1)],
                "median_of_phases_s": {phase: quantile(seconds, 0.5)
                                       for phase, seconds in self.phases.items()}}
