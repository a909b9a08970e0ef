#!/usr/bin/env python3
"""What cannot be known of a Mac without one, looked at on one: `deploy/dev confirm-mac`.

Starts an espalierd and an agent of its own, trains small models on the device and on the
processor, and holds what Espalier says of the machine against what the system's programs say.
Prints a line for each fact, PASS, FAIL or NOT HERE with the figure that was seen, to be pasted
where somebody asks for it. On Linux, what is portable of it is looked at; the rest is NOT HERE.
Exit status 1: a FAIL.
"""
import argparse
import os
import platform
import subprocess
import sys
import time

import machine
import network
import system_facts
import training
from cluster import BIN, REPOSITORY, Cluster
from report import Report, one_line, output_of

PATIENCE = 60  # seconds, of what waits for a program's first start


def arguments():
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true",
                         help="few conformance runs, and not 17m: a few minutes instead of twenty")
    options.add_argument("--peer", metavar="NODE",
                         help="another Mac: a node of the espalierd that ESPALIER_COORDINATOR "
                              "names, as this machine is")
    options.add_argument("--data", metavar="FOLDER", help="with --peer: prepared text on both")
    options.add_argument("--sleep", action="store_true",
                         help="put the machine to sleep for a minute (root)")
    options.add_argument("--daemon", action="store_true",
                         help="have launchd start a worker as a daemon (root)")
    chosen = options.parse_args()
    if (chosen.peer is None) != (chosen.data is None):
        options.error("--peer NODE and --data FOLDER go together")
    return chosen


def first_starts():
    """Seconds of the first start of each program, to be taken before all else, and of the next."""
    def start(program):
        before = time.monotonic()
        output_of(BIN / program, "--version", seconds=180)
        return time.monotonic() - before
    found = {program: (start(program), start(program))
             for program in ("espalier", "espalierd", "espalier-agent", "espalier-worker")}
    figures = [f"{program} {one:.1f} s, then {two:.1f} s" for program, (one, two) in found.items()]
    return max(one for one, _ in found.values()) < PATIENCE, "; ".join(figures)


def heading():
    commit = subprocess.run(["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            check=False).stdout.strip()
    return (f"confirm-mac {time.strftime('%Y-%m-%d')}, commit {commit or 'unknown'}, "
            f"{platform.platform()}, {one_line(output_of(BIN / 'espalier-worker', '--version'))}")


def main():
    chosen = arguments()
    os.environ["TMPDIR"] = "/tmp"  # sockets have at most 103 letters
    starts = first_starts()
    print(heading(), flush=True)
    report, cluster = Report(), Cluster()
    try:
        report.check("first starts", "macOS looks at new programs within what waits allow for it",
                     lambda: starts)
        machine.check_all(report, cluster)
        training.check_all(report, cluster, chosen.quick)
        network.check_all(report, cluster, chosen.peer, chosen.data)
        system_facts.check_all(report, cluster, chosen.sleep, chosen.daemon)
    finally:
        failed = report.finish()
        cluster.close(keep=bool(failed))
        if failed:
            print(f"what was logged is in {cluster.folder}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
