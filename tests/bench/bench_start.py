#!/usr/bin/env python3
"""How long a generation takes to start on two nodes, from the decision until every rank is ready:
through the agents of two nodes, and by an mpirun that starts both ranks itself, over loopback.

Both under a real espalierd, in turn, with workers that load no LibTorch. One JSON line: medians in
seconds, and the difference. Arguments: [ROUNDS], 10 by default. Linux (reads /proc).
"""
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "soak"))
import world as worlds

ONE_MACHINE = {"left": "127.0.0.1", "right": "127.0.0.1"}


def start_seconds(world):
    job = world.submit(10)
    world.reach(job, "COMPLETED")
    at = {event["state"]: int(event["time_ms"]) for event in reversed(world.events(job))}
    return (at["RUNNING"] - at["LAUNCHING"]) / 1000


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    worlds_by_name = {}
    seconds = {"agents": [], "mpirun": []}
    try:
        worlds_by_name["agents"] = worlds.World()
        worlds_by_name["mpirun"] = worlds.World(addresses=ONE_MACHINE, with_agents=False)
        for _ in range(rounds):
            for name, world in worlds_by_name.items():
                seconds[name].append(start_seconds(world))
    finally:
        for world in worlds_by_name.values():
            world.close(keep=False)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(json.dumps({"bench": "start", "figure": "seconds from the decision until all are ready",
                      "rounds": rounds, "agents": medians["agents"], "mpirun": medians["mpirun"],
                      "agents_more": round(medians["agents"] - medians["mpirun"], 3)}))


if __name__ == "__main__":
    main()
