#!/usr/bin/env python3
"""What programs of macOS print, as documented, and what is read from it; and how a report reads."""
import io
import os
import pathlib
import tempfile
import unittest
from unittest import mock

import network
import readings
import system_facts
from report import NotHere, Report

VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                              100000.
Pages active:                            900000.
Pages inactive:                          800000.
Pages speculative:                        30000.
Pages throttled:                              0.
Pages wired down:                        200000.
Pages purgeable:                           5000.
"Translation faults":                 123456789.
File-backed pages:                       400000.
Anonymous pages:                        1330000.
"""
BATTERY = """Now drawing from 'Battery Power'
 -InternalBattery-0 (id=21102691)\t62%; discharging; 4:31 remaining present: true
"""
MAINS = "Now drawing from 'AC Power'\n"
LSOF = """p101
f20
n127.0.0.1:50001->127.0.0.1:50002
f21
n*:50003
p102
n127.0.0.1:50002->127.0.0.1:50001
"""
LOADED = """dyld[77]: <1> /opt/homebrew/lib/libtorch_cpu.dylib
dyld[77]: <2> /opt/homebrew/opt/libomp/lib/libomp.dylib
dyld[77]: <3> /opt/homebrew/opt/libomp/lib/libomp.dylib
dyld[77]: <4> /opt/elsewhere/lib/libiomp5.dylib
"""


class Readings(unittest.TestCase):
    def test_available_memory_counts_no_page_twice(self):
        self.assertEqual(readings.vm_stat_available(VM_STAT), 505000 * 16384)

    def test_sizes_have_units(self):
        self.assertEqual(readings.size("12.5M"), 12.5 * (1 << 20))
        self.assertEqual(readings.size("3 GB"), 3 * (1 << 30))
        used = readings.swapusage_used("total = 2048.00M  used = 512.25M  free = 1535.75M")
        self.assertEqual(used, 512.25 * (1 << 20))

    def test_a_footprint_is_its_own_line_or_in_the_heading(self):
        text = "espalier-worker [77]: 64-bit    Footprint: 300 MB (16384 bytes per page)\n"
        self.assertEqual(readings.footprint_bytes(text), 300 << 20)
        text += "Auxiliary data:\n    phys_footprint: 312 MB\n    phys_footprint_peak: 400 MB\n"
        self.assertEqual(readings.footprint_bytes(text), 312 << 20)

    def test_power_is_mains_or_a_battery_with_its_charge(self):
        self.assertEqual(readings.pmset_power(BATTERY), ("BATTERY", 62))
        self.assertEqual(readings.pmset_power(MAINS), ("MAINS", None))

    def test_levels_have_the_words_of_a_report(self):
        self.assertEqual([readings.pressure_of(level) for level in (1, 2, 4)],
                         ["NORMAL", "WARNING", "CRITICAL"])
        name = "com.apple.system.thermalpressurelevel"
        states = [readings.notify_state(f"{name} {state}\n") for state in range(5)]
        self.assertEqual([readings.heat_of(state) for state in states],
                         ["NORMAL", "NORMAL", "WARNING", "CRITICAL", "CRITICAL"])

    def test_connections_are_those_of_the_process(self):
        self.assertEqual(readings.lsof_peers(LSOF, 101), [("127.0.0.1:50001", "127.0.0.1:50002")])

    def test_a_runtime_that_is_loaded_twice_is_one(self):
        self.assertEqual(len(readings.runtimes_loaded(LOADED)), 2)
        self.assertEqual(len(readings.runtimes_loaded(LOADED.rsplit("dyld", 1)[0])), 1)


class Programs(unittest.TestCase):
    """What stands in for programs of macOS, first in PATH."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        path = mock.patch.dict(os.environ, {"PATH": f"{folder.name}:{os.environ['PATH']}"})
        path.start()
        self.addCleanup(path.stop)

    def program(self, name, text):
        (self.folder / name).write_text("#!/bin/sh\n" + text, encoding="utf-8")
        (self.folder / name).chmod(0o755)

    @mock.patch.object(network, "DARWIN", True)
    def test_a_process_without_connections_has_no_pairs_yet(self):
        self.program("lsof", "exit 1\n")  # as it says that it found none
        self.assertEqual(network.pairs_of(101), [])
        self.program("lsof", f"cat <<'END'\n{LSOF}END\n")
        self.assertEqual(network.pairs_of(101), [("127.0.0.1:50001", "127.0.0.1:50002")])
        self.program("lsof", "echo no such option >&2; exit 2\n")
        with self.assertRaisesRegex(RuntimeError, "no such option"):
            network.pairs_of(101)

    @mock.patch.object(system_facts, "SELF_TEST_SECONDS", 0.1)
    def test_a_daemon_that_says_nothing_is_told_with_its_log(self):
        result = self.folder / "result"
        pathlib.Path(f"{result}.log").write_text("dyld: Library not loaded", encoding="utf-8")
        with self.assertRaisesRegex(RuntimeError, "within 0.1 s.*Library not loaded"):
            system_facts.await_result(result)


class Lines(unittest.TestCase):
    def test_a_check_that_breaks_fails_alone(self):
        out = io.StringIO()
        report = Report(out)

        def not_here():
            raise NotHere("a fact of macOS")

        def broken():
            raise ValueError("no\nnumber")
        report.check("one", "it is", lambda: (True, "3 of 3"))
        report.check("two", "it is not", lambda: (False, "2 of 3"))
        report.check("three", "elsewhere", not_here)
        report.check("four", "who knows", broken)
        self.assertEqual(report.finish(), 1)
        lines = out.getvalue().splitlines()
        self.assertEqual([line.split("  ")[0].strip() for line in lines[:4]],
                         ["PASS", "FAIL", "NOT HERE", "FAIL"])
        self.assertIn("3 of 3  [it is]", lines[0])
        self.assertIn("ValueError: no number", lines[3])
        self.assertEqual(lines[4], "1 PASS, 2 FAIL, 1 NOT HERE")

    def test_nothing_failed_is_success(self):
        report = Report(io.StringIO())
        report.check("one", "it is", lambda: (True, ""))
        self.assertEqual(report.finish(), 0)


if __name__ == "__main__":
    unittest.main()
