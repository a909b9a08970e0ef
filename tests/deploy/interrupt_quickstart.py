#!/usr/bin/env python3
"""Ctrl-C in a quickstart that trains, typed on a real terminal: it stops what it started.

No process of the run goes on, and no memory of its workers is left. Programs come from
$ESPALIER_BIN. Linux (reads /proc and /dev/shm). Exit status 1: a rule did not hold.
"""
import os
import pathlib
import pty
import signal
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CTRL_C = b"\x03"


def processes_naming(text):
    """Command lines, by process number, of processes that have `text` in an argument."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended
        if text in arguments and int(folder.name) != os.getpid():
            found[int(folder.name)] = arguments
    return found


def shared_memory():
    return {file.name for file in pathlib.Path("/dev/shm").glob("espalier-*")}


def interrupted(work):
    """Runs the quickstart, types Ctrl-C once both ranks train; its exit status and output."""
    child, terminal = pty.fork()
    if child == 0:
        script = str(REPOSITORY / "deploy" / "quickstart")
        os.execv(script, [script, work, str(REPOSITORY / "common")])
    output, typed = b"", False
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the terminal is closed
            break
        if not piece:
            break
        output += piece
        if not typed and b"EXCHANGE" in output:
            typed = os.write(terminal, CTRL_C) == 1
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.decode(errors="replace"), typed


def main():
    before = shared_memory()
    with tempfile.TemporaryDirectory(prefix="espalier-interrupt-") as work:
        status, output, typed = interrupted(work)
        remaining = processes_naming(work)
        for process in remaining:
            os.kill(process, signal.SIGKILL)
    left = shared_memory() - before
    for name in left:
        (pathlib.Path("/dev/shm") / name).unlink()
    rules = {
        "it came to train": typed,
        "the exit status is that of an interrupt": status == 130,
        "it says that it stopped what it started": "stopped espalierd, its agents and workers" in output,
        f"no process goes on: {remaining}": not remaining,
        f"no shared memory is left: {sorted(left)}": not left,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        print(output[-4000:], f"\nexit status {status}; does not hold:", *broken, sep="\n  ")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
