#!/usr/bin/env python3
"""Whether GRPO made a model play Wordle better, from what `deploy/dev tour grpo` left: the first 200
positions of validation, which training never had, answered by the model that the tour began with and
by what it became, once with the likeliest tokens and ten times sampled as in training (temperature
1); rewards of the set agreeing, reckoned here anew; the mean of their differences, its interval of
95 %, and p of a paired bootstrap: how often a mean of positions drawn with repetition is not above 0.
Then whole games on the secrets of validation, which are all practised: one of each by the likeliest
guesses, and ten that are sampled, with the same bootstrap over the secrets. The worker's own log must
say the same mean reward of the likeliest, or nothing is told.

Arguments: [FOLDER], build/tour/grpo by default."""
import http.client
import json
import os
import pathlib
import random
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOBS = {"before": "grpo-wordle-nano-start", "after": "grpo-wordle-nano"}
STATES, DRAWS, TURNS, ASKED_AT_ONCE = 200, 20000, 6, 50  # serve takes 80
SAMPLED = 10  # answers to each state, and games of each secret
END = "</guess>"


def marks(secret, guess):
    left = [s for s, g in zip(secret, guess) if s != g]
    text = ""
    for s, g in zip(secret, guess):
        mark = "G" if s == g else "Y" if g in left else "X"
        if mark == "Y":
            left.remove(g)
        text += mark
    return text


def agrees(word, history):
    return all(marks(word, guess) == seen for guess, seen in history)


def guess_of(completion):
    """As worker/reward/wordle_guess.h reads leniently; "" for none."""
    found = re.search("<guess>(.*?)</guess>", completion, re.IGNORECASE | re.DOTALL)
    return "" if found is None else re.sub("[^A-Z]", "", found.group(1).upper())


def reward(words, secret, history, completion):
    """The set agreeing of worker/reward/wordle_rewards.h."""
    guess = guess_of(completion)
    may_win = guess in words and guess not in dict(history) and agrees(guess, history)
    return (1 if may_win else 0) + (1 if guess == secret else 0)


class Player:
    """`espalier serve` with a checkpoint, asked for the next guess of games."""

    def __init__(self, checkpoint):
        self.server = subprocess.Popen(
            [os.path.join(os.environ["ESPALIER_BIN"], "espalier-worker"), "serve", "--model",
             checkpoint, "--port", "0", "--device", "cpu"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def __enter__(self):
        self.port = int(self.server.stdout.readline().split(":")[2].split("/")[0])
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait()

    def turns(self, histories, temperature=0, seed=0):
        texts = []
        for begin in range(0, len(histories), ASKED_AT_ONCE):
            prompts = ["".join(["Wordle.", *(f" {guess} {seen}." for guess, seen in history),
                                "\n<think>"]) for history in histories[begin:begin + ASKED_AT_ONCE]]
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": prompts, "max_tokens": 96, "temperature": temperature,
                 "seed": seed + begin, "stop": [END]}),
                {"Content-Type": "application/json"})
            answer = json.load(connection.getresponse())
            connection.close()
            if "choices" not in answer:
                sys.exit(f"the server says {json.dumps(answer)}")
            texts += [one["text"] + (END if one["finish_reason"] == "stop" else "")
                      for one in sorted(answer["choices"], key=lambda one: one["index"])]
        return texts

    def games(self, words, secrets, temperature=0):
        """Of each secret, whether it is found within six turns."""
        histories, found = [[] for _ in secrets], [False] * len(secrets)
        for turn in range(TURNS):
            going = [game for game in range(len(secrets)) if not found[game]]
            turns = self.turns([histories[game] for game in going], temperature, turn * 10000)
            for game, completion in zip(going, turns):
                guess, secret = guess_of(completion), secrets[game]
                found[game] = guess == secret
                if guess in words and guess not in dict(histories[game]):
                    histories[game].append((guess, marks(secret, guess)))
        return found


def tell(figure, **values):
    print(json.dumps({"bench": "wordle", "figure": figure, **values}), flush=True)


def rewards(player, words, states, temperature):
    turns = player.turns([history for _, history in states], temperature)
    return [reward(words, secret, history, turn) for (secret, history), turn in zip(states, turns)]


def mean_of_each(values, count):
    """Of values that are SAMPLED rounds of `count`, the mean over the rounds."""
    return [sum(values[one::count]) / SAMPLED for one in range(count)]


def played(folder, who, words, states, secrets):
    """Rewards of the states; and of each secret whether it is found, and how often when sampled."""
    checkpoint = max((folder / f"{JOBS[who]}-checkpoints").glob("step-*"))
    with Player(checkpoint) as player:
        got = rewards(player, words, states, 0)
        drawn = rewards(player, words, states * SAMPLED, 1)
        said = re.findall(r"validation after .*  reward (\S+)",
                          (folder / f"{JOBS[who]}.log").read_text())
        mean = sum(got) / len(got)
        if abs(float(said[-1]) - mean) > 2e-3:
            sys.exit(f"{who}: the mean reward is {mean:.4f} here and {said[-1]} in the worker's log")
        likeliest = player.games(words, secrets)
        sampled = player.games(words, secrets * SAMPLED, temperature=1)
    tell(who, states=len(states), reward=mean,
         sampled_reward=sum(drawn) / len(drawn), games=len(likeliest),
         solve_rate=sum(likeliest) / len(likeliest), sampled_games=len(sampled),
         sampled_solve_rate=sum(sampled) / len(sampled))
    return {"the mean reward": got,
            "the mean reward when sampled": mean_of_each(drawn, len(states)),
            "the games that are solved": likeliest,
            "the part of sampled games that is solved": mean_of_each(sampled, len(secrets))}


def tell_rise(figure, before, after):
    """By a paired bootstrap."""
    rises = [b - a for a, b in zip(before, after)]
    draw = random.Random(1)
    means = sorted(sum(draw.choices(rises, k=len(rises))) / len(rises) for _ in range(DRAWS))
    tell(figure, pairs=len(rises), rise=sum(rises) / len(rises),
         interval_95=[means[int(DRAWS * 0.025)], means[int(DRAWS * 0.975)]],
         p=(1 + sum(mean <= 0 for mean in means)) / (1 + DRAWS))


def states_of(path):
    return [(record["secret"], [tuple(turn) for turn in record["history"]])
            for record in (json.loads(line)["record"] for line in path.read_text().splitlines())]


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/tour/grpo")
    words = (folder / "wordle/words.txt").read_text().split()
    prompts = states_of(folder / "wordle/validation-prompts.jsonl")
    secrets = list(dict.fromkeys(secret for secret, _ in prompts))
    before, after = (played(folder, who, words, prompts[:STATES], secrets) for who in JOBS)
    for what in before:
        tell_rise(f"rise of {what}", before[what], after[what])


if __name__ == "__main__":
    main()
