"""What deploy/macos/link.py refuses of a program: it stands in for macOS's linker."""

import os
import struct
import subprocess
import sys
import tempfile
import unittest

LINK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/macos/link.py")
OURS = "__ZN8espalier4WorkEv"


def mach_o(defined, wanted):
    """An object file of nothing but symbols."""
    strings, table = b"\0", b""
    for name, kind in [(each, 0x0F) for each in defined] + [(each, 0x01) for each in wanted]:
        table += struct.pack("<IBBHQ", len(strings), kind, 0, 0, 0)
        strings += name.encode() + b"\0"
    header = struct.pack("<IiiIIIII", 0xFEEDFACF, 0x0100000C, 0, 1, 1, 24, 0, 0)
    at = len(header) + 24
    command = struct.pack("<IIIIII", 2, 24, at, len(table) // 16, at + len(table), len(strings))
    return header + command + table + strings


class Link(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        darwin = self.path("zig/lib/libc/darwin")
        os.makedirs(darwin)
        with open(os.path.join(darwin, "libSystem.tbd"), "w") as file:
            file.write("exports:\n  - targets: [ arm64-macos ]\n    symbols: [ _read ]\n")

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def object(self, name, defined=(), wanted=()):
        with open(self.path(name), "wb") as file:
            file.write(mach_o(defined, wanted))
        return self.path(name)

    def archive(self, name, *objects):
        self.assertEqual(self.link("archive", self.path(name), *objects), "")
        return self.path(name)

    def link(self, mode, *arguments):
        """What it says when it refuses, else nothing."""
        done = subprocess.run(
            [sys.executable, LINK, mode, *arguments],
            env={**os.environ, "ESPALIER_MACOS_KIT": self.folder.name},
            capture_output=True, text=True,
        )
        self.assertEqual(done.returncode == 0, done.stderr == "")
        return done.stderr

    def program(self, *arguments):
        return self.link("program", self.path("program"), *arguments)

    def test_what_is_ours_must_be_defined(self):
        main = self.object("main.o", ["_main"], [OURS])
        self.assertIn("which main.o wants, is defined in nothing", self.program(main))
        work = self.archive("work.a", self.object("work.o", [OURS]))
        self.assertEqual(self.program(main, work), "")

    def test_a_member_that_is_not_needed_may_want_anything(self):
        main = self.object("main.o", ["_main"], ["_read"])
        work = self.archive("work.a", self.object("work.o", [OURS], ["_nobody_has_it"]))
        self.assertEqual(self.program(main, work), "")
        main = self.object("main.o", ["_main"], [OURS])
        self.assertIn("nobody_has_it, which work.o wants", self.program(main, work))

    def test_a_name_of_a_framework_needs_that_framework(self):
        main = self.object("main.o", ["_main"], ["_IOServiceClose"])
        self.assertIn("is of IOKit, which is not linked", self.program(main))
        self.assertEqual(self.program(main, "-framework", "IOKit"), "")

    def test_an_entry_of_the_list_that_nobody_takes_is_named(self):
        main = self.object("main.o", ["_main"], ["_IOServiceClose"])
        self.assertEqual(self.program(main, "-framework", "IOKit"), "")
        said = self.link("unused", self.path("program"))
        self.assertIn("IOAllowPowerChange", said)
        self.assertNotIn("IOServiceClose", said)


unittest.main()
