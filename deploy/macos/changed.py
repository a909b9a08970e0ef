"""changed.py ROOT REVISION ALL WITHOUT: of the sources in ALL (compile_commands.json) that WITHOUT
lacks, prints the objects of those that differ from git's REVISION, or include such a header."""

import json
import os
import re
import subprocess
import sys


def sources(path):
    """{source: object} of a compile_commands.json."""
    with open(path) as file:
        commands = json.load(file)
    return {each["file"]: re.search(r" -o (\S+)", each["command"]).group(1) for each in commands}


def includes(path, root, seen):
    """The project's files that a file includes, itself or through others."""
    if path in seen or not os.path.exists(path):
        return
    seen.add(path)
    with open(path, encoding="utf-8") as file:
        for name in re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE):
            includes(os.path.join(root, name), root, seen)


def main():
    root, revision, everything, without = sys.argv[1:]
    names = subprocess.run(
        ["git", "-C", root, "diff", "--name-only", revision],
        check=True, stdout=subprocess.PIPE, text=True,
    ).stdout.split()
    changed = {os.path.join(root, name) for name in names}
    done = sources(without)
    for source, target in sorted(sources(everything).items()):
        seen = set()
        if source not in done:
            includes(source, root, seen)
        if seen & changed:
            print(target)


main()
