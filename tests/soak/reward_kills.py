"""SIGKILL for workers that sample, judge and learn: `deploy/dev soak kills --rewards N`, a part of
kills.py.

Two nodes of one machine, with agents, train a small model by grpo, judged by a slow program. One
of the two workers is killed N times each while it samples, while it waits for its rewards, and
while it learns. Then: no committed step is done again, nobody is left behind, and a checkpoint
holds the model, to the bit, of a job of as many steps that nobody disturbed: what was sampled, and
earned, was the same.
"""
import os
import signal
import subprocess
import time

from worker_kills import REPOSITORY, Trained
from world import BIN, Broken, quantile

# Each answer takes a while, so that rewards are something that one can be killed in; as are
# rollouts of 96 tokens: ranks tell every 2.5 seconds what they do, and what is much shorter is
# hardly heard of.
JUDGE = REPOSITORY / "tests/data/verifiers/vowels.py"
JOB = """
name: NAME
model: {from: MODEL}
data: {path: DATA, sequence_length: 192}
train:
  task: grpo
  steps: STEPS
  global_batch: 32
  reproducible: true
  rollout: {samples: 4, max_new_tokens: 96, temperature: 1}
  verifier: {kind: external, command: [python3, JUDGE, '0.02']}
  grpo: {updates_per_rollout: 2}
  schedule: {kind: constant, learning_rate: 3e-4, warmup_steps: 0}
parallel: {min_nodes: 2, max_nodes: 2, plan: fixed}
checkpoint: {every_steps: 0}
evaluate: {every_steps: 0, max_prompts: 8}
health: {failure_timeout_seconds: 10, max_restarts: 100000, restart_backoff_seconds: 0.1}
launch: {threads: 1}
"""
# What a worker says that it does, and what it is asked to be killed in.
MOMENTS = {"rollout": ("ROLLOUT",), "reward": ("REWARD",),
           "learning": ("COMPUTE", "EXCHANGE", "UPDATE")}
# Within so many seconds a rank says in the instant of a report that it is in a given moment.
HEARD_WITHIN = 300


class RewardKills(Trained):
    def __init__(self, world, chance):
        super().__init__(world)
        self.random, self.recoveries, self.heard = chance, [], {}
        self.kills = dict.fromkeys(MOMENTS, 0)
        sums, self.data = world.folder / "sums", world.folder / "prompts"
        self.data_verb("make", "arithmetic", "--output", sums, "--train", "400",
                       "--validation", "20")
        self.data_verb("prepare", "--output", self.data, "--format", "prompts",
                       "--validation-files", sums / "validation-prompts.jsonl", "--",
                       sums / "train-prompts.jsonl")

    @staticmethod
    def data_verb(*words):
        done = subprocess.run([BIN / "espalier-worker", "data", *words], capture_output=True,
                              text=True)
        if done.returncode != 0:
            raise Broken(f"data {words[0]}: {done.stderr}")

    def submit(self, name, steps):
        return self.submit_text(name, JOB, {
            "NAME": name, "MODEL": REPOSITORY / "tests/data/models/quickstart", "DATA": self.data,
            "STEPS": steps, "JUDGE": JUDGE})

    def heard_in(self, job, moment):
        """Pid of a rank that has told since the last look that it is in that moment, or None."""
        before, self.heard = self.heard, {rank["rank"]: rank
                                          for rank in self.world.job(job).get("ranks", [])}
        fresh = [rank for number, rank in self.heard.items()
                 if number in before and rank.get("phase") in MOMENTS[moment] and
                 rank["silent_seconds"] < before[number]["silent_seconds"] and
                 rank.get("last_step") == before[number].get("last_step")]
        return int(self.random.choice(fresh).get("pid", 0)) if fresh else None

    def check_strays(self):
        world = self.world
        world.until("nobody is left", lambda: not world.others())

    def kill(self, job, moment):
        world = self.world
        world.until("both ranks train", lambda: world.job(job)["state"] == "RUNNING" and
                    len(world.ranks(job)) == 2)
        first = self.step(job)
        world.until("a step", lambda: self.step(job) > first)
        found, self.heard = [], {}
        world.until(f"a worker in {moment}", lambda: found.append(self.heard_in(job, moment)) or
                    found[-1], HEARD_WITHIN)
        generation, before = int(world.job(job)["generation"]), self.step(job)
        began = time.monotonic()
        os.kill(found[-1], signal.SIGKILL)
        self.await_next_generation(job, generation, before)
        self.recoveries.append(time.monotonic() - began)
        self.kills[moment] += 1

    def all(self, count):
        # It ends when it is told to: kills that are long in coming find it at work.
        disturbed = self.submit("disturbed", 10**6)
        for _ in range(count):
            for moment in MOMENTS:
                self.kill(disturbed, moment)
        steps = self.steps_when_told_to_end(disturbed)
        self.check_strays()
        undisturbed = self.submit("undisturbed", steps)
        if self.newest_model(disturbed) != self.model_at_the_end(undisturbed):
            raise Broken("the disturbed run has another model")
        return {"soak": "kills of workers that learn from rewards", "kills": self.kills,
                "steps": steps, "committed_steps_lost": 0, "equal_to_the_bit": True,
                "next_step_s": [quantile(self.recoveries, share) for share in (0.5, 0.99, 1)]}
