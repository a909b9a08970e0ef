"""changed.py ROOT REVISION COMMANDS TORCH: prints objects of a build (COMMANDS is its
compile_commands.json): those of targets that do not have LibTorch's headers (the folder TORCH), of
the others up to MOST: those whose source differs from git's REVISION, and what room is left of those
that include a header that does. Generated sources are left out: those that include them read them.
"""

import json
import os
import re
import subprocess
import sys

MOST = 30  # takes minutes


def includes(path, root, seen):
    """Adds the project's files that a file includes, itself or through others, and itself."""
    if path in seen or not os.path.exists(path):
        return
    seen.add(path)
    with open(path, encoding="utf-8") as file:
        for name in re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE):
            includes(os.path.join(root, name), root, seen)


def some(objects, most, which):
    """As many of them, from all of the list."""
    if len(objects) <= most:
        return objects
    most = max(0, most)
    print(f"{len(objects)} {which}, {most} are read; deploy/dev check-macos reads all",
          file=sys.stderr)
    return [objects[i * len(objects) // most] for i in range(most)]


def main():
    root, revision, commands, torch = sys.argv[1:]
    names = subprocess.run(
        ["git", "-C", root, "diff", "--name-only", revision],
        check=True, stdout=subprocess.PIPE, text=True,
    ).stdout.split()
    changed = {os.path.join(root, name) for name in names}
    with open(commands, encoding="utf-8") as file:
        entries = json.load(file)
    free, differ, included = [], [], []
    for entry in entries:
        command, source = entry["command"], entry["file"]
        if not source.endswith(".cc") or source.startswith(entry["directory"]):
            continue  # a precompiled header, or generated
        target = re.search(r" -o (\S+)", command).group(1)
        seen = set()
        if f"-isystem {torch} " not in command:
            free.append(target)
        elif source in changed:
            differ.append(target)
        else:
            includes(source, root, seen)
            if seen & changed:
                included.append(target)
    print("\n".join(free + some(differ, MOST, "differ") +
                    some(included, MOST - len(differ), "include a header that differs")))


main()
