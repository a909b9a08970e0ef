"""What deploy/launchd and deploy/systemd start: the files are read as launchd and systemd read them,
and name programs and options that exist. Programs come from $ESPALIER_BIN.
"""

import configparser
import os
import pathlib
import plistlib
import shlex
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["ESPALIER_BIN"]).resolve()
PROGRAMS = {"espalierd", "espalier-agent"}


def plists():
    return sorted((REPOSITORY / "deploy" / "launchd").glob("*.plist"))


def units():
    return sorted((REPOSITORY / "deploy" / "systemd").glob("*.service"))


def load_unit(path):
    unit = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    unit.optionxform = str
    unit.read_string(path.read_text(encoding="utf-8"))
    return unit


class Services(unittest.TestCase):
    def check_command(self, command):
        """A program of ours, a subcommand and options of its own, and files that are there."""
        path = pathlib.PurePath(command[0])
        self.assertEqual(str(path.parent), "@REPOSITORY@/build/bin")
        self.assertIn(path.name, PROGRAMS)
        words = [word for word in command[1:] if not word.startswith("-")]
        subcommand = words[:1] if path.name == "espalier-agent" else []
        done = subprocess.run([str(BIN / path.name), *subcommand, "--help"], text=True, check=True,
                              stdout=subprocess.PIPE)
        for word in command[1:]:
            if word.startswith("--"):
                self.assertIn(f" {word} ", done.stdout)
            elif word.startswith("@REPOSITORY@/"):
                self.assertTrue((REPOSITORY / word.split("/", 1)[1]).exists(), word)
        return path.name

    def test_launchd_starts_both_programs_and_again_after_a_fault(self):
        programs = set()
        for path in plists():
            with self.subTest(path.name):
                daemon = plistlib.loads(path.read_bytes())
                self.assertEqual(daemon["Label"], path.stem)
                programs.add(self.check_command(daemon["ProgramArguments"]))
                self.assertEqual(daemon["KeepAlive"], {"SuccessfulExit": False})
                self.assertTrue(daemon["RunAtLoad"] and daemon["AbandonProcessGroup"])
                self.assertIn("/opt/homebrew/bin", daemon["EnvironmentVariables"]["PATH"])
                self.assertGreaterEqual(daemon["SoftResourceLimits"]["NumberOfFiles"], 10240)
        self.assertEqual(programs, PROGRAMS)

    def test_systemd_starts_both_programs_and_leaves_their_workers_alone(self):
        programs = set()
        for path in units():
            with self.subTest(path.name):
                service = load_unit(path)["Service"]
                programs.add(self.check_command(shlex.split(service["ExecStart"])))
                self.assertEqual(service["Restart"], "on-failure")
                self.assertEqual(service["KillMode"], "process")
        self.assertEqual(programs, PROGRAMS)

    def test_the_readme_puts_something_in_every_words_place(self):
        for folder, files in (("launchd", plists()), ("systemd", units())):
            readme = (REPOSITORY / "deploy" / folder / "README.md").read_text(encoding="utf-8")
            for path in files:
                text = path.read_text(encoding="utf-8")
                for word in ("@USER@", "@HOME@", "@REPOSITORY@"):
                    if word in text:
                        self.assertIn(f"s|{word}|", readme)
                    text = text.replace(word, "")
                self.assertNotIn("@", text.replace("between @", ""), path.name)

    def install(self, home, folder):
        """The README's function, typed there; (exit code, what it said, what it had sudo do)."""
        readme = (REPOSITORY / "deploy" / "launchd" / "README.md").read_text(encoding="utf-8")
        begin = readme.index("install_daemon() {")
        function = readme[begin:readme.index("\n}\n", begin) + 3]
        (folder / "deploy" / "launchd").mkdir(parents=True)
        (folder / "deploy" / "launchd" / "x.plist").write_text("@REPOSITORY@", encoding="utf-8")
        done = subprocess.run(
            ["bash", "-c", f"sudo() {{ echo \"$@\" >> did; }}\n{function}\ninstall_daemon x"],
            cwd=folder, env={**os.environ, "HOME": str(home)}, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        did = folder / "did"
        return done.returncode, done.stdout, did.read_text() if did.exists() else ""

    def test_a_daemon_is_not_installed_from_where_macos_lets_none_read(self):
        with tempfile.TemporaryDirectory() as home:
            home = pathlib.Path(home).resolve()
            code, said, did = self.install(home, home / "Documents" / "espalier")
            self.assertEqual((code, did), (1, ""))
            self.assertIn("move the repository", said)
            code, said, did = self.install(home, home / "src" / "espalier")
            self.assertEqual(code, 0, said)
            self.assertIn("launchctl bootstrap system /Library/LaunchDaemons/x.plist", did)

    def test_whoever_installs_an_agent_hears_of_local_network_privacy(self):
        readme = (REPOSITORY / "deploy" / "launchd" / "README.md").read_text(encoding="utf-8")
        self.assertIn("Local Network", readme[readme.index("LaunchAgents"):])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
