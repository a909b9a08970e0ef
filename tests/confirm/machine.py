"""What an agent says of this machine, beside what the system's own programs say of it."""
import os
import platform
import time

import readings
from cluster import BIN
from report import NotHere, gigabytes, near, output_of

DARWIN = platform.system() == "Darwin"


def sysctl(name):
    if not DARWIN:
        raise NotHere("a fact of macOS")
    return output_of("sysctl", "-n", name).strip()


def settled(cluster, read, told, holds, tries=5):
    """Figures move between two readings, and the agent reports every other second."""
    for _ in range(tries):
        here, there = read(), told(cluster.node()["report"])
        if holds(there, here):
            break
        time.sleep(2)
    return holds(there, here), there, here


def native():
    translated = output_of("sysctl", "-in", "sysctl.proc_translated").strip() if DARWIN else ""
    if not DARWIN:
        raise NotHere(f"{platform.system()} {platform.machine()}")
    chip = sysctl("machdep.cpu.brand_string")
    return (platform.machine() == "arm64" and translated in ("", "0"),
            f"{chip}, macOS {platform.mac_ver()[0]}, {platform.machine()}")


def cores(cluster):
    told = cluster.node()["report"]["resources"]["performance_cores"]
    if DARWIN:
        fast = int(sysctl("hw.perflevel0.physicalcpu"))
        return told == fast, f"{told}, hw.perflevel0.physicalcpu {fast}"
    most = len(os.sched_getaffinity(0))
    return 1 <= told <= most, f"{told} of {most} processors"


def memory(cluster):
    told = cluster.node()["report"]["resources"]["memory_bytes"]
    if DARWIN:
        whole = int(sysctl("hw.memsize"))
        return told == whole, f"{gigabytes(told)}, hw.memsize {gigabytes(whole)}"
    whole = readings.linux_memory()["MemTotal"]
    return 0 < told <= whole, f"{gigabytes(told)}, MemTotal {gigabytes(whole)}"


def available(cluster):
    def read():
        if DARWIN:
            return readings.vm_stat_available(output_of("vm_stat"))
        return readings.linux_memory()["MemAvailable"]

    def holds(told, here):  # a control group has less than the machine
        return near(told, here, 0.05, 1 << 29) or (not DARWIN and 0 < told <= here)
    good, told, here = settled(
        cluster, read, lambda report: report["resources"]["memory_available_bytes"], holds)
    return good, f"{gigabytes(told)}, {'vm_stat' if DARWIN else 'MemAvailable'} {gigabytes(here)}"


def swap(cluster):
    def read():
        if DARWIN:
            return readings.swapusage_used(sysctl("vm.swapusage"))
        memory_now = readings.linux_memory()
        return memory_now["SwapTotal"] - memory_now["SwapFree"]

    def holds(told, here):
        return near(told, here, 0.05, 1 << 27) or (not DARWIN and told <= here)
    good, told, here = settled(
        cluster, read, lambda report: report["resources"].get("swap_used_bytes", 0), holds)
    return good, f"{gigabytes(told)}, the system {gigabytes(here)}"


def pressure(cluster):
    good, told, here = settled(
        cluster, lambda: readings.pressure_of(int(sysctl("kern.memorystatus_vm_pressure_level"))),
        lambda report: report["condition"]["memory"], lambda told, here: told == here)
    return good, f"{told}, the kernel {here}"


def heat(cluster):
    if not DARWIN:
        raise NotHere("a fact of macOS")
    name = "com.apple.system.thermalpressurelevel"
    states = []

    def read():
        states.append(readings.notify_state(output_of("notifyutil", "-g", name)))
        return readings.heat_of(states[-1])
    good, told, here = settled(cluster, read, lambda report: report["condition"]["heat"],
                               lambda told, here: told == here)
    return good and 0 <= states[-1] <= 4, f"{told}, notify(3) state {states[-1]}: {here}"


def power(cluster):
    if not DARWIN:
        raise NotHere("a fact of macOS")

    def told(report):
        condition = report["condition"]
        return condition["power"], condition.get("battery_percent")

    def holds(one, other):
        same = one[1] == other[1] or None not in (one[1], other[1]) and abs(one[1] - other[1]) <= 1
        return one[0] == other[0] and same
    good, there, here = settled(
        cluster, lambda: readings.pmset_power(output_of("pmset", "-g", "batt")), told, holds)
    return good, f"{there[0]} {there[1]} %, pmset {here[0]} {here[1]} %"


def runtimes():
    worker = BIN / "espalier-worker"
    if DARWIN:
        text = output_of(worker, "self-test", "--device", "cpu",
                         env={**os.environ, "DYLD_PRINT_LIBRARIES": "1"})
    else:
        text = output_of("ldd", worker)
    found = readings.runtimes_loaded(text)
    return len(found) == 1, ", ".join(found) or "none"


def check_all(report, cluster):
    for name, fact, look in (
            ("machine", "native code on Apple silicon, no Rosetta", native),
            ("fast cores", "compute threads: the cores of hw.perflevel0", lambda: cores(cluster)),
            ("memory", "hw.memsize is what there is", lambda: memory(cluster)),
            ("memory available", "free, file-backed and purgeable pages, as vm_stat counts them",
             lambda: available(cluster)),
            ("swap", "vm.swapusage", lambda: swap(cluster)),
            ("memory pressure", "levels 1, 2 and 4 of the kernel", lambda: pressure(cluster)),
            ("heat", "notify(3) states 0 to 4 of thermalpressurelevel", lambda: heat(cluster)),
            ("power", "IOPS says mains or battery, and its charge", lambda: power(cluster)),
            ("one OpenMP runtime", "LibTorch and the worker share one libomp (pytorch#193520)",
             runtimes)):
        report.check(name, fact, look)
