#!/usr/bin/env python3
"""A part of kills.py that fails says why, tells of its jobs, keeps its folder, and leaves nobody."""
import contextlib
import io
import re
import shutil
import unittest

import kills
import world as worlds


class Failing:
    def __init__(self, world):
        self.world = world

    def all(self):
        job = self.world.submit(10**9)
        self.world.reach(job, "RUNNING")
        raise worlds.Broken("made up")


class Play(unittest.TestCase):
    def test_a_failure_tells_of_its_jobs(self):
        made = []

        def run(world):
            made.append(world)
            return Failing(world).all()
        told = io.StringIO()
        with self.assertRaises(SystemExit) as end, contextlib.redirect_stderr(told):
            kills.play(worlds.STUB, run, seed=1)
        self.assertRegex(str(end.exception), "^made up\nseed 1; everything is in ")
        self.addCleanup(shutil.rmtree, made[0].folder)
        self.assertRegex(told.getvalue(), re.compile(
            r'"state": "RUNNING".*  starts generation 1 on left, right', re.DOTALL))
        self.assertTrue(made[0].folder.is_dir())
        made[0].until("nobody is left", lambda: not made[0].others())


if __name__ == "__main__":
    unittest.main()
