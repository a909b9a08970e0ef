"""changed.py ROOT REVISION COMMANDS TORCH: prints objects of a build (COMMANDS is its
compile_commands.json): those of targets that do not have LibTorch's headers (the folder TORCH), of
the others those whose source differs from git's REVISION, and up to MOST that include a header that
does. Generated sources are left out: those that include them read them.
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


def main():
    root, revision, commands, torch = sys.argv[1:]
    names = subprocess.run(
        ["git", "-C", root, "diff", "--name-only", revision],
        check=True, stdout=subprocess.PIPE, text=True,
    ).stdout.split()
    changed = {os.path.join(root, name) for name in names}
    with open(commands, encoding="utf-8") as file:
        entries = json.load(file)
    objects, included = [], []
    for entry in entries:
        command, source = entry["command"], entry["file"]
        if not source.endswith(".cc") or source.startswith(entry["directory"]):
            continue  # a precompiled header, or generated
        target = re.search(r" -o (\S+)", command).group(1)
        seen = set()
        if f"-isystem {torch} " not in command or source in changed:
            objects.append(target)
        else:
            includes(source, root, seen)
            if seen & changed:
                included.append(target)
    if len(included) > MOST:
        print(f"{len(included)} more include a header that changed, {MOST} are read", file=sys.stderr)
    print("\n".join(objects + included[:: max(1, -(-len(included) // MOST))]))


main()
