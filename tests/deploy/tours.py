#!/usr/bin/env python3
"""The tours of deploy/tour, with programs that play Espalier's: each line of the table names jobs
and steps that exist, is run in its order from a folder made anew, and shows what came out.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TOUR = REPOSITORY / "deploy" / "tour"
PUZZLE, SOLUTION = "2003004000211000", "2143341243211234"
# Plays `data make`, `data prepare` and `generate`, which says the solution, or guesses: the same
# each time with the model that tuning began with; each call is noted.
ESPALIER = f"""#!/bin/sh
echo "espalier $*" >> "$CALLS"
case "$1 $2" in
  "data make") mkdir -p "$5"
    echo '{{"prompt":"{PUZZLE}","completion":"{SOLUTION}"}}' | tee "$5/train.jsonl" \
      > "$5/validation.jsonl"
    case "$3" in
      arithmetic) echo '{{"prompt":"What is 6 - 9? ","record":{{"question":"","answer":-3}}}}' ;;
      wordle) echo '{{"prompt":"","record":{{"secret":"ALIEN","history":[]}}}}' ;;
    esac | tee "$5/train-prompts.jsonl" > "$5/validation-prompts.jsonl" ;;
  "data prepare") mkdir -p "$4" ;;
  "generate "*)
    case "$*" in
      *nano-start-*Wordle*) echo "<guess>ARIAS" ;;
      *"ARIAS GXGXX"*) echo "<guess>ALIEN" ;;
      *Wordle*) echo "<guess>ARIAS" ;;
      *) echo {SOLUTION} ;;
    esac ;;
esac
"""
# Plays training: leaves a checkpoint and a report where it is told to, and says how it evaluates.
WORKER = """#!/bin/sh
echo "worker $*" >> "$CALLS"
for word in "$@"; do
  case "$word" in checkpoint.directory=*)
    mkdir -p "${word#*=}/step-00000007"
    echo '{"before": {"answers": 9, "accuracy": 0.25}, "after": {"answers": 9, "accuracy": 0.75}}' \
      > "${word#*=}/rft-report.json" ;;
  esac
done
case "$*" in *learning_rate=0*) rate=0.125 ;; *) rate=0.5 ;; esac
echo "validation after step 7: loss -1.0  reward 1.5  solve_rate $rate  mean_turns 3 (9 tokens, 1 s)"
"""


class Tours(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, text in (("espalier", ESPALIER), ("espalier-worker", WORKER)):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def call(self, *words):
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        done = subprocess.run(
            [TOUR, self.folder / "work", *words], check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "ESPALIER_BIN": str(self.folder), "CALLS": str(calls)})
        return done.returncode, done.stdout, calls.read_text() if calls.exists() else ""

    def names(self):
        return re.findall(r"^      (\S+)", self.call()[1], re.MULTILINE)

    def test_each_tour_trains_jobs_that_are_shipped_from_a_clean_folder(self):
        self.assertIn("trm", self.names())
        for name in self.names():
            with self.subTest(name):
                left = self.folder / "work" / name / "left"
                left.parent.mkdir(parents=True)
                left.touch()
                status, said, calls = self.call(name)
                self.assertEqual(status, 0, said)
                self.assertFalse(left.exists(), "what an earlier tour left is still there")
                jobs = re.findall(r"--standalone (\S+)", calls)
                self.assertIn(name, pathlib.Path(jobs[-1]).name)
                for job in jobs:
                    self.assertTrue(pathlib.Path(job).is_file(), job)

    def test_every_job_of_a_tour_has_one(self):
        for job in (REPOSITORY / "configs" / "jobs").glob("tour-*.yaml"):
            self.assertIn(job.stem[len("tour-"):], self.names())

    def test_adapters_are_put_on_what_was_trained_before(self):
        _, said, calls = self.call("lora")
        self.assertIn("model.from=", calls)
        self.assertIn("pretrain-checkpoints/step-00000007", calls)
        self.assertLess(said.index("Before: "), said.index("After: "))

    def test_puzzles_are_shown_beside_what_became_of_them(self):
        _, said, _ = self.call("trm")
        self.assertIn("2 . . 3 \t2 1 4 3", said)
        self.assertIn("1 of 1 filled", said)

    def test_sums_are_asked_of_both_models_and_counted(self):
        _, said, calls = self.call("rft")
        self.assertIn("model.from=" + str(self.folder / "work/rft/rft-nano-start-checkpoints"), calls)
        self.assertLess(said.index("before: "), said.index("after:  "))
        self.assertIn("right is -3", said)
        self.assertIn("of 9 such questions, right: 0.25 before, 0.75 after", said)

    def test_games_are_played_by_both_models_to_their_end(self):
        _, said, _ = self.call("grpo")
        self.assertIn("before: looking for ALIEN\n    ARIAS GXGXX\n    ARIAS: no new word\n", said)
        self.assertIn("after: looking for ALIEN\n    ARIAS GXGXX\n    ALIEN GGGGG\n", said)
        self.assertIn("before: mean reward 1.5, words found in 0.125 of the games", said)
        self.assertIn("after: mean reward 1.5, words found in 0.5 of the games", said)

    def test_a_tour_that_there_is_not_is_refused_with_those_that_there_are(self):
        status, said, calls = self.call("nowhere")
        self.assertEqual((status, calls), (1, ""))
        self.assertIn("pretrain lora trm rft grpo", said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
