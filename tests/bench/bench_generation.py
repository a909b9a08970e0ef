#!/usr/bin/env python3
"""Generation on this machine, as JSON lines: `generation_bench` by the number of sequences at once
(tokens/s, and the seconds that reading all weights once would take beside those of a turn), and
`espalier serve` with a tiny model and 16 clients that stream (tokens/s of all, seconds to the first
token: median and worst; the fewest tokens that a client got while all ran, as a part of the most),
beside one client alone.

Arguments: [THREADS [TOKENS]], 2 and 128 by default; those of generation_bench after `--`."""
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/quickstart"
CLIENTS = 16


class Client:
    """One answer, streamed; when each token came."""

    def __init__(self, port, tokens, number):
        self.arguments = (port, tokens, number)
        self.times = []
        self.thread = threading.Thread(target=self.run)

    def run(self):
        port, tokens, number = self.arguments
        self.begin = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": "// Returns the number " + str(number), "max_tokens": tokens,
             "seed": number, "stream": True}), {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                self.times.append(time.monotonic())
        connection.close()


def measure(port, clients, tokens):
    all_clients = [Client(port, tokens, number) for number in range(clients)]
    begin = time.monotonic()
    for client in all_clients:
        client.thread.start()
    for client in all_clients:
        client.thread.join()
    seconds = time.monotonic() - begin
    first = [client.times[0] - client.begin for client in all_clients]
    # While all of them ran.
    end = min(client.times[-1] for client in all_clients)
    counts = [sum(at <= end for at in client.times) for client in all_clients]
    return {"clients": clients, "events_per_second": sum(len(c.times) for c in all_clients) / seconds,
            "first_seconds_median": statistics.median(first), "first_seconds_worst": max(first),
            "fewest_of_most": min(counts) / max(counts)}


def serve(threads, tokens):
    server = subprocess.Popen(
        [os.path.join(os.environ["ESPALIER_BIN"], "espalier-worker"), "serve", "--model", str(MODEL),
         "--port", "0", "--threads", str(threads), "--device", "cpu", "--context", "512"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = int(server.stdout.readline().split(":")[2].split("/")[0])
        measure(port, 1, 16)  # warm up
        for clients in (1, CLIENTS):
            rounds = [measure(port, clients, tokens) for _ in range(3)]
            best = sorted(rounds, key=lambda one: one["events_per_second"])[1]
            print(json.dumps({"bench": "generation", "figure": "serve", "threads": threads,
                              "tokens": tokens, **best}), flush=True)
    finally:
        server.terminate()
        server.wait()


def main():
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    arguments, passed = given[:cut], given[cut + 1:]
    threads = int(arguments[0]) if arguments else 2
    tokens = int(arguments[1]) if len(arguments) > 1 else 128
    subprocess.run([os.path.join(os.environ["ESPALIER_BENCH"], "generation_bench"),
                    "--threads", str(threads), *passed],
                   check=True)
    serve(threads, tokens)


if __name__ == "__main__":
    main()
