"""What the system's own programs say of a machine, taken apart; on Linux, the files that say it.
Nothing here starts anything but `output_of`'s words. Used by machine.py, training.py, network.py.
"""
import os
import pathlib
import re

UNITS = {"": 1, "B": 1, "K": 1 << 10, "KB": 1 << 10, "M": 1 << 20, "MB": 1 << 20, "G": 1 << 30,
         "GB": 1 << 30, "T": 1 << 40, "TB": 1 << 40}


def size(text):
    """Bytes of "123M", "1.50G", "12.3 MB"."""
    number, unit = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", text).groups()
    return float(number) * UNITS[unit.upper()]


def vm_stat_available(text):
    """Free and file-backed and purgeable pages, in bytes. vm_stat's free ones are without the
    speculative, which are among the file-backed."""
    page = int(re.search(r"page size of (\d+) bytes", text)[1])
    pages = {name: int(count) for name, count in re.findall(r'^"?([\w -]+)"?:\s+(\d+)\.$', text,
                                                            re.MULTILINE)}
    return page * (pages["Pages free"] + pages["File-backed pages"] + pages["Pages purgeable"])


def swapusage_used(text):
    """Of `sysctl -n vm.swapusage`: "total = 2048.00M  used = 512.25M  free = ..."."""
    return size(re.search(r"used = (\S+)", text)[1])


def footprint_bytes(text):
    """Of `footprint PID`: "    phys_footprint: 312 MB", or in its heading "Footprint: 312 MB"."""
    found = re.search(r"phys_footprint:\s*([\d.]+ ?\w+)", text) or \
        re.search(r"Footprint:\s*([\d.]+ ?\w+)", text)
    return size(found[1])


def pmset_power(text):
    """("MAINS" or "BATTERY", percent or None) of `pmset -g batt`."""
    source = re.search(r"drawing from '([^']*)'", text)[1]
    percent = re.search(r"InternalBattery.*?(\d+)%", text)
    return ("MAINS" if source.startswith("AC") else "BATTERY"), percent and int(percent[1])


def notify_state(text):
    """Of `notifyutil -g NAME`: "NAME 0"."""
    return int(text.split()[-1])


# As common/platform/platform_darwin.cc has them.
def pressure_of(level):
    return "CRITICAL" if level >= 4 else "WARNING" if level >= 2 else "NORMAL"


def heat_of(state):
    return "CRITICAL" if state >= 3 else "WARNING" if state == 2 else "NORMAL"


def runtimes_loaded(text):
    """Copies of OpenMP's runtime among the libraries that the loader names (ldd, or
    DYLD_PRINT_LIBRARIES)."""
    paths = re.findall(r"(/\S*/lib(?:gomp|omp|iomp5)\.(?:so[.\d]*|dylib))", text)
    return sorted({os.path.realpath(path) for path in paths})


def lsof_peers(text, pid):
    """Peers (HOST:PORT) of the established connections that `lsof -Fpn` names for a process, as
    pairs of both ends."""
    own, pairs = None, []
    for line in text.splitlines():
        if line[:1] == "p":
            own = int(line[1:])
        elif line[:1] == "n" and own == pid and "->" in line:
            pairs.append(tuple(line[1:].split("->")))
    return pairs


def linux_memory():
    """Bytes by name of /proc/meminfo."""
    text = pathlib.Path("/proc/meminfo").read_text(encoding="ascii")
    return {name: int(count) * 1024 for name, count in re.findall(r"^(\w+):\s+(\d+) kB", text,
                                                                   re.MULTILINE)}


def linux_resident(pid):
    pages = pathlib.Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def linux_peers(pid):
    """As lsof_peers, of IPv4, from /proc."""
    inodes = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(entry)))
        except OSError:
            continue  # closed since
    pairs = []
    for line in pathlib.Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if fields[3] == "01" and fields[9] in inodes:
            pairs.append((fields[1], fields[2]))
    return pairs
