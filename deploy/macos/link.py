"""Stands in for macOS's archiver and linker in the build of `check`: it makes nothing that runs,
but asks of every program what the linker would. All that is ours must be defined in what is linked;
a plain name must be one of libSystem, or listed in symbols.txt and its framework linked.

    link.py archive TARGET OBJECT...            notes what the objects define and want
    link.py program TARGET OBJECT_OR_OPTION...  resolves a program, notes what it takes of others
    link.py unused TARGET...                    refuses entries of symbols.txt that none takes

References between libraries of others cannot be seen: of them there are only headers.
"""

import fnmatch
import json
import os
import re
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = "8espalier"  # namespace espalier in a mangled name


def read_object(path):
    """What a Mach-O object defines for others and wants of them, less others' C++ names."""
    with open(path, "rb") as file:
        data = file.read()
    magic, _, _, kind, commands = struct.unpack_from("<IiiII", data)
    if magic != 0xFEEDFACF or kind != 1:
        raise SystemExit(f"{path} is no 64-bit Mach-O object")
    defined, wanted = [], []
    at = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", data, at)
        if command == 2:  # LC_SYMTAB
            symbols, count, strings, length = struct.unpack_from("<IIII", data, at + 8)
            names = data[strings : strings + length]
            table = data[symbols : symbols + 16 * count]
            for where, flags, _, _, _ in struct.iter_unpack("<IBBHQ", table):
                if flags & 0xE0 or not flags & 1:  # of a debugger, or of this file alone
                    continue
                name = names[where : names.index(b"\0", where)].decode()
                if name.startswith("__Z") and OURS not in name:
                    continue
                (defined if flags & 0x0E else wanted).append(name)
        at += size
    return {"object": os.path.basename(path), "defined": defined, "wanted": wanted}


def archive(target, objects):
    with open(target, "w") as file:
        json.dump([read_object(path) for path in objects], file)


def lib_system(kit):
    """Names that every program on arm64 macOS has, from the kit's list of its libraries."""
    with open(os.path.join(kit, "zig/lib/libc/darwin/libSystem.tbd")) as file:
        text = file.read()
    names = set()
    for part in re.split(r"- targets:", text)[1:]:
        targets, _, rest = part.partition("]")
        if "arm64-macos" in targets:
            names.update(re.findall(r"[\w$]+", rest))
    return names


def kept_list():
    """(library, pattern) of every line of symbols.txt."""
    with open(os.path.join(HERE, "symbols.txt")) as file:
        lines = [line.split("#")[0].split() for line in file]
    for line in lines:
        if line and len(line) != 2:
            raise SystemExit(f"symbols.txt: '{' '.join(line)}' is not LIBRARY SYMBOL")
    return [tuple(line) for line in lines if line]


def resolve(objects, members):
    """Takes members as a linker does: those that define what is wanted still. Returns what nobody
    defines, with who wants it."""
    owner = {}
    for member in members:
        for name in member["defined"]:
            owner.setdefault(name, member)
    defined, wanted, pending = set(), {}, list(objects)
    taken = set()
    while pending:
        current = pending.pop()
        defined.update(current["defined"])
        for name in current["wanted"]:
            wanted.setdefault(name, current["object"])
            member = owner.get(name)
            if name not in defined and member is not None and id(member) not in taken:
                taken.add(id(member))
                pending.append(member)
    return {name: user for name, user in wanted.items() if name not in defined}


def program(target, arguments):
    kit = os.environ.get("ESPALIER_MACOS_KIT") or os.path.join(os.getcwd(), "../kit")
    objects = [read_object(path) for path in arguments if path.endswith(".o")]
    members = []
    for path in arguments:
        if path.endswith(".a"):
            with open(path) as file:
                members += json.load(file)
    frameworks = set(re.findall(r"-framework (\w+)", " ".join(arguments)))
    system, kept = lib_system(kit), kept_list()
    faults, taken = [], []
    for name, user in sorted(resolve(objects, members).items()):
        if name.startswith("__Z"):
            faults.append(f"{name}, which {user} wants, is defined in nothing that is linked")
            continue
        if name in system:
            continue
        library = next((of for of, like in kept if fnmatch.fnmatchcase(name[1:], like)), None)
        if library is None:
            faults.append(f"{name[1:]}, which {user} wants, is not of libSystem nor in symbols.txt")
        elif library.startswith("framework:") and library[10:] not in frameworks:
            of = library[10:]
            faults.append(f"{name[1:]}, which {user} wants, is of {of}, which is not linked")
        else:
            taken.append(name[1:])
    if faults:
        raise SystemExit("\n".join(f"{target}: {fault}" for fault in faults))
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    with open(target, "w") as file:
        file.writelines(name + "\n" for name in taken)


def unused(targets):
    names = set()
    for target in targets:
        with open(target) as file:
            names.update(file.read().split())
    rest = [name for of, name in kept_list() if of.startswith("framework:") and name not in names]
    if rest:
        raise SystemExit(f"symbols.txt lists what no program takes: {' '.join(rest)}")


if __name__ == "__main__":
    mode = sys.argv[1]
    if mode == "unused":
        unused(sys.argv[2:])
    else:
        {"archive": archive, "program": program}[mode](sys.argv[2], sys.argv[3:])
