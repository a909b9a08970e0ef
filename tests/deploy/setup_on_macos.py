"""deploy/dev setup on a Mac, with programs that stand in for Homebrew: what it installed once is
installed, so that later verbs need no network. Homebrew lists a formula by its own name, never by
an alias.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

DEV = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "dev"

# Homebrew's names of what it calls by more than one, of those that we might use.
ALIASES = {
    "openmpi": "open-mpi",
    "openssl": "openssl@3",
    "pkg-config": "pkgconf",
    "pkgconfig": "pkgconf",
    "sqlite3": "sqlite",
    "libtorch": "pytorch",
    "mkl-dnn": "onednn",
    "python": "python@3.14",
}

BREW = """#!/usr/bin/env python3
import json, pathlib, sys
here = pathlib.Path(__file__).parent
installed = here / "installed"
if sys.argv[1] == "list":
    print(installed.read_text(), end="")
elif sys.argv[1] == "install":
    aliases = json.loads((here / "aliases").read_text())
    with installed.open("a") as file:
        for name in sys.argv[2:]:
            print(aliases.get(name, name), file=file)
    print("INSTALLS", *sys.argv[2:])
"""


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program("brew", BREW)
        self.program("uname", "#!/bin/sh\necho Darwin\n")
        (self.folder / "installed").write_text("")
        (self.folder / "aliases").write_text(json.dumps(ALIASES))

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def set_up(self):
        """What `deploy/dev setup check` prints."""
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        done = subprocess.run([str(DEV), "setup", "check"], env=environment,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_what_it_installed_is_found_again(self):
        self.assertIn("INSTALLS", self.set_up())
        self.assertNotIn("INSTALLS", self.set_up())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
