#!/usr/bin/env python3
"""A real job of two workers, scraped by the real Prometheus as deploy/prometheus configures it.

Then: every query of every panel of deploy/grafana has data, while the job trains undisturbed and
again after it was paused and a worker was killed; and every second of a worker is in exactly one
goodput account, so that all accounts together grow as the clock does.
Linux (reads /proc). Exit status 1: a rule did not hold; the folder with all logs is kept.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import dashboards

sys.path.insert(0, str(dashboards.REPOSITORY / "tests" / "soak"))
import world as worlds
from world import Broken

SHIPPED = dashboards.REPOSITORY / "deploy" / "prometheus"
# Wide enough that a bucket of gradients is over 1 MiB: bandwidth is not measured in less. Of a task
# that has figures of its own.
JOB = """
name: watched
model:
  architecture: trm
  hidden_size: 512
  num_hidden_layers: 1
  num_attention_heads: 8
  recursion: {h_cycles: 1, l_cycles: 1, halt_max_steps: 1, halt_exploration: 0, causal: true}
data: {path: DATA, sequence_length: 32}
train:
  task: trm
  steps: 1000000000
  global_batch: 8
  schedule: {kind: constant, warmup_steps: 0}
batch: {max_micro_batch: 4}
parallel: {min_nodes: 2, max_nodes: 2}
checkpoint: {every_steps: 20}
evaluate: {every_steps: 10, max_sequences: 8}
health: {max_restarts: 1000, restart_backoff_seconds: 0.1}
launch: {threads: 1}
"""
SLACK = 1.0  # WorkerTally::kSlack: what is not booked yet
WINDOW = 15.0  # seconds at least, of which slack is a small part
ACCOUNT = re.compile(r'^espalier_worker_account_seconds_total\{(.*)\} (\S+)$', re.MULTILINE)
HANDLED = re.compile(r'^espalier_loop_handling_seconds_bucket\{le="(.*)"\} (\S+)$', re.MULTILINE)


def get(address, path, **parameters):
    query = "?" + urllib.parse.urlencode(parameters) if parameters else ""
    url = f"http://{address}{path}{query}"
    with urllib.request.urlopen(url, timeout=worlds.PATIENCE) as answer:
        return answer.read().decode()


class Prometheus:
    """With the shipped configuration, but for where espalierd is and how often it is asked."""

    def __init__(self, world, metrics):
        self.folder, self.process, self.address = world.folder / "prometheus", None, None
        self.folder.mkdir()
        text = (SHIPPED / "prometheus.yml").read_text(encoding="utf-8")
        for shipped, here in (("127.0.0.1:9464", metrics), ("interval: 5s", "interval: 1s"),
                              ("- rules.yml", f"- {SHIPPED / 'rules.yml'}")):
            if shipped not in text:
                raise Broken(f"prometheus.yml has no '{shipped}' any more: change this test")
            text = text.replace(shipped, here)
        (self.folder / "prometheus.yml").write_text(text, encoding="utf-8")
        self.log = self.folder / "log"
        with self.log.open("ab") as log:
            try:
                self.process = subprocess.Popen(
                    ["prometheus", f"--config.file={self.folder / 'prometheus.yml'}",
                     f"--storage.tsdb.path={self.folder / 'data'}",
                     "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log)
            except FileNotFoundError as error:
                raise Broken("no 'prometheus' here: deploy/dev setup installs it") from error
        try:
            world.until("Prometheus listens", self.listens)
        except BaseException:
            self.close()
            raise

    def listens(self):
        """Where it does is in its log; at first it answers that it is not ready."""
        if self.process.poll() is not None:
            raise Broken(f"Prometheus has ended: {worlds.read(self.log)}")
        found = re.search(r"Listening on.*address=(127\.0\.0\.1:\d+)", worlds.read(self.log))
        self.address = found and found[1]
        try:
            return found and get(self.address, "/-/ready")
        except OSError:
            return False

    def ask(self, path, **parameters):
        try:
            return json.loads(get(self.address, path, **parameters))["data"]
        except urllib.error.HTTPError as error:
            raise Broken(f"{parameters}: {error.read().decode()}") from error

    def close(self):
        self.process.kill()
        self.process.wait()


class Watched:
    def __init__(self, world):
        self.world = world
        words = worlds.read(world.state / "address").split()
        self.metrics = next(word[len("metrics="):] for word in words if word.startswith("metrics="))
        self.prometheus = Prometheus(world, self.metrics)
        self.job = None
        for node in world.agents:  # most machines do not tell
            (world.folder / f"condition-{node}").write_text('{"energyJoules": 12}')

    def submit(self):
        data = self.world.folder / "text"
        subprocess.run([worlds.BIN / "espalier-worker", "data", "prepare", "--output", data,
                        *sorted(dashboards.REPOSITORY.glob("*/*/*.md"))],
                       check=True, stdout=subprocess.DEVNULL)
        path = self.world.folder / "watched.yaml"
        path.write_text(JOB.replace("DATA", str(data)), encoding="utf-8")
        self.job = self.world.ask("submit", str(path))["job_id"]
        self.world.reach(self.job, "RUNNING")

    def step(self):
        return int(self.world.job(self.job).get("step", 0))

    def await_steps(self, count):
        first = self.step()
        self.world.until(f"{count} more steps", lambda: self.step() >= first + count)

    # --- dashboards ---------------------------------------------------------------------------
    def values_of(self, variable):
        """What Grafana offers for a variable: all of them, where it offers that."""
        found = dashboards.LABEL_VALUES.match(variable["query"]["query"])
        where = {"match[]": found["selector"]} if found["selector"] else {}
        values = []

        def offered():
            values[:] = self.prometheus.ask(f"/api/v1/label/{found['label']}/values", **where)
            return values
        self.world.until(f"variable {variable['name']} has values", offered)
        return "|".join(values) if variable["multi"] else values[0]

    def has_data(self, expression):
        result = self.prometheus.ask("/api/v1/query", query=expression)["result"]
        return any(series["value"][1] != "NaN" for series in result)

    def every_query_has_data(self):
        """Rules and rates need a few scrapes: each query is asked until it has data. How many."""
        count = 0
        for dashboard in dashboards.load():
            values = dict(dashboards.GRAFANA)
            for variable in dashboard.variables:
                if variable["type"] == "query":
                    values[variable["name"]] = self.values_of(variable)
            for where, expression in dashboard.queries():
                asked = dashboards.put_in(expression, values)
                self.world.until(f"{where} has data: {asked}", lambda: self.has_data(asked))
                count += 1
        return count

    # --- goodput ------------------------------------------------------------------------------
    def accounts(self):
        """Seconds by rank, then by account."""
        ranks = {}
        for labels, seconds in ACCOUNT.findall(get(self.metrics, "/metrics")):
            label = dict(re.findall(r'(\w+)="(.*?)"', labels))
            if label["job"] == self.job:
                ranks.setdefault(label["rank"], {})[label["account"]] = float(seconds)
        return ranks

    def booked(self):
        """(seconds, earliest, latest) by rank: all that is booked, and the bounds of the instant at
        which a report brought it there, which is between two scrapes of which only the second shows
        it."""
        found, last = {}, {}

        def all_changed():
            began = time.monotonic()
            now = {rank: sum(each.values()) for rank, each in self.accounts().items()}
            ended = time.monotonic()
            for rank, seconds in now.items():
                if rank not in found and rank in last and last[rank][0] != seconds:
                    found[rank] = (seconds, last[rank][1], ended)
                last[rank] = (seconds, began)
            return len(found) == 2
        self.world.until("both ranks report", all_changed)
        return found

    def slowest_handling(self):
        """An upper bound of how long a message of this run waited for espalierd, as it says."""
        buckets = [(float(bound), int(count)) for bound, count in
                   HANDLED.findall(get(self.metrics, "/metrics"))]
        return next(bound for bound, count in buckets if count == buckets[-1][1])

    def accounts_grow_as_the_clock_does(self, before):
        """Beyond the bounds of both instants: slack of the tally, and what a message waited when it
        was booked, then and now, and when it was shown."""
        after = {}

        def window_is_over():
            after.update(self.booked())
            return all(after[rank][1] - before[rank][2] >= WINDOW for rank in after)
        self.world.until("the window of goodput is over", window_is_over)
        allowed = 2 * SLACK + 3 * self.slowest_handling()
        window = {}
        for rank, (seconds, earliest, latest) in after.items():
            grown = seconds - before[rank][0]
            least, most = earliest - before[rank][2], latest - before[rank][1]
            if not least - allowed <= grown <= most + allowed:
                raise Broken(f"rank {rank} booked {grown:.2f} s in {least:.2f} to {most:.2f} s: "
                             f"{self.accounts()[rank]}")
            window[rank] = [round(grown, 2), round(least, 2), round(most, 2)]
        return window

    def totals_are_the_time_of_the_run(self):
        """When all is over nothing is unbooked: workers lived from somewhere between the launch and
        the first step until the end."""
        at = {event["state"]: int(event["time_ms"]) / 1000
              for event in reversed(self.world.events(self.job))}
        least, most = at["CANCELLED"] - at["RUNNING"], at["CANCELLED"] - at["LAUNCHING"]
        allowed = SLACK + self.slowest_handling()
        for rank, seconds in self.accounts().items():
            if not least - allowed <= sum(seconds.values()) <= most + allowed:
                raise Broken(f"rank {rank} booked {seconds} in {least:.2f} to {most:.2f} s")

    # --- disturbances -------------------------------------------------------------------------
    def pause(self):
        self.world.ask("pause", self.job)
        self.world.reach(self.job, "PAUSED_SOFT")
        self.world.ask("resume", self.job)
        self.await_steps(2)

    def kill_a_worker(self):
        self.world.until("both ranks train", lambda: len(self.world.ranks(self.job)) == 2)
        generation = int(self.world.job(self.job)["generation"])
        os.kill(self.world.ranks(self.job)[0], signal.SIGKILL)

        def runs_again():
            status = self.world.job(self.job)
            return status["state"] == "RUNNING" and int(status["generation"]) > generation
        self.world.until("the next generation runs", runs_again)
        self.await_steps(2)

    def all(self):
        began = time.monotonic()
        self.submit()
        self.await_steps(2)
        before = self.booked()
        queries = self.every_query_has_data()
        quiet = time.monotonic() - began
        self.pause()
        self.kill_a_worker()
        self.every_query_has_data()
        window = self.accounts_grow_as_the_clock_does(before)
        for rank, seconds in self.accounts().items():
            unused = [name for name in ("compute", "exchange_wait", "data_wait", "checkpoint",
                                        "paused", "recovering") if not seconds[name]]
            if unused:
                raise Broken(f"rank {rank} has nothing in {unused}: {seconds}")
        self.world.ask("cancel", self.job)
        self.world.reach(self.job, "CANCELLED")
        self.totals_are_the_time_of_the_run()
        return {"queries": queries, "seconds": round(time.monotonic() - began, 1),
                "until_all_had_data_s": round(quiet, 1), "booked_and_clock_s": window}


def main():
    one_machine = dict.fromkeys(worlds.NODES, "127.0.0.1")
    world = worlds.World(addresses=one_machine, worker=worlds.BIN / "espalier-worker")
    held, watched = False, None
    try:
        watched = Watched(world)
        print(json.dumps(watched.all()))
        held = True
    except Broken as error:
        sys.exit(f"{error}\neverything is in {world.folder}")
    finally:
        if watched is not None:
            watched.prometheus.close()
        world.close(keep=not held)


if __name__ == "__main__":
    main()
