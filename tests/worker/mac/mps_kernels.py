#!/usr/bin/env python3
"""Writes tests/data/mac/mps_kernels.txt: the operators that have a kernel for MPS.

  mps_kernels.py NATIVE_FUNCTIONS_YAML > tests/data/mac/mps_kernels.txt

The file is part of PyTorch's Python packages (torchgen/packaged/ATen/native). Take it from the oldest
LibTorch that trains on Macs: what has a kernel there has one in later versions, too.
"""
import re
import sys


def entries(text):
    """Each operator's signature and its other lines."""
    parts = re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]
    for part in parts:
        signature, _, rest = part.partition("\n")
        yield signature.split("(")[0].strip(), rest


def has_mps(rest):
    dispatch = re.search(r"^  dispatch:\n((?:    .*\n|\s*#.*\n)+)", rest, flags=re.MULTILINE)
    keys = re.findall(r"^    ([A-Za-z0-9, ]+):", dispatch.group(1), re.MULTILINE) if dispatch else []
    return any("MPS" in re.split(r",\s*", line) for line in keys)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        all_of_them = dict(entries(file.read()))
    own = {name for name, rest in all_of_them.items() if has_mps(rest)}
    delegated = {name for name, rest in all_of_them.items()
                 for to in re.findall(r"structured_delegate: (\S+)", rest) if to in own}
    print(f"# Operators with a kernel for MPS, of {sys.argv[2]}: made by tests/worker/mac/mps_kernels.py")
    print("\n".join(sorted(own | delegated)))


if __name__ == "__main__":
    main()
