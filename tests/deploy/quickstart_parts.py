"""Parts of the quickstart, alone: when it prepares its text anew, which it does not while that is as
it was, and what becomes of a job that finds no machine.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "quickstart"
PREPARED = "prepared before"
# Plays `data prepare --output FOLDER -- FILE...`, and `-o json job` and `nodes` of a job whose nodes'
# GPUs have failed.
ESPALIER = """#!/bin/sh
case "$1 $3" in
  "data "*) mkdir -p "$4" && touch "$4/manifest.json" ;;
  "-o nodes") echo '{"nodes": [{"report": {"device": {}}}, {"report": {"device": {}}}]}' ;;
  "-o job") printf '{"status": {\n  "state": "QUEUED"\n}}\n' ;;
  *) echo "reason: no node is usable" ;;
esac
"""


class Parts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, text in (("espalier", ESPALIER), ("sleep", "#!/bin/sh\n")):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        (self.folder / "real").mkdir()
        (self.folder / "real" / "file").write_text("one")
        (self.folder / "link").symlink_to("real")

    def call(self, *words):
        """A function of the script with arguments: (exit status, what it says)."""
        script = QUICKSTART.read_text(encoding="utf-8")
        text = "set -o pipefail\n"
        for function in re.findall(r"^\w+\(\) {(?: .*}|\n(?:.*\n)*?})$", script, re.MULTILINE):
            text += function + "\n"
        done = subprocess.run(
            ["bash", "-euc", text + '"$@"', "-", *map(str, words)],
            env={**os.environ, "bin": str(self.folder), "data": str(self.folder / "data"),
                 "job": "quickstart-1", "PATH": f"{self.folder}:{os.environ['PATH']}"},
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def prepare(self, folder):
        status, said = self.call("prepare_text", folder)
        self.assertEqual(status, 0, said)
        return said

    def test_a_job_that_finds_no_machine_is_told_with_its_reason(self):
        status, said = self.call("await_begin")
        self.assertEqual(status, 1)
        self.assertIn("no node is usable", said)
        self.assertIn("ESPALIER_DEVICE=cpu", said)

    def test_text_behind_a_link_that_changed_is_prepared_anew(self):
        for name in ("real", "link"):
            with self.subTest(name):
                self.prepare(self.folder / name)
                self.assertIn(PREPARED, self.prepare(self.folder / name))
                with (self.folder / "real" / "file").open("a") as file:
                    file.write("more")
                self.assertNotIn(PREPARED, self.prepare(self.folder / name))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
