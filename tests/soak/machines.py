"""Machines on one machine, for chaos.py: network namespaces on one switch, each with a link that
can be cut, made deaf or mute and slowed, a disk and shared memory of its own, and a clock that can
be set. Nothing leaves the namespaces. Needs root, Linux and iproute2.
"""
import os
import signal
import struct
import subprocess

from world import Broken, alive, name_of, read

RATE = "1gbit"
# A limit, not memory that is taken. Far above least_disk_free_bytes of a node, below which jobs
# leave it.
DISK_BYTES = 4 << 30
# Drops whatever comes: a packet that is longer than the burst can never be sent.
NOTHING = ("tbf", "rate", "1kbit", "burst", "10b", "limit", "10b")
# In the folder of each machine's mount namespace: its own shared memory in place of the system's,
# and its disk where all of them have theirs.
ENTER = 'mount --bind "$1" "$2" && mount --bind "$3" /dev/shm && shift 3 && exec "$@"'


def run(*words):
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise Broken(f"{' '.join(words)}: {done.stderr.strip()}")


def shaped(rate):
    return ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")


def start_of(pid):
    """With the pid, what names a process for ever; empty when it is gone."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


class Switch:
    """A bridge in a namespace of its own, with a port for each machine."""

    def __init__(self):
        self.prefix = f"chaos-{os.getpid()}"
        self.space = f"{self.prefix}-switch"
        self.ports = 0
        run("ip", "netns", "add", self.space)
        self.ip("link", "add", "name", "hub", "type", "bridge", "forward_delay", "0")
        self.ip("link", "set", "hub", "up")

    def ip(self, *words):
        run("ip", "-n", self.space, *words)

    def connect(self, space, address):
        """A machine's link, eth0 there; the name of its port."""
        self.ports += 1
        port = f"port{self.ports}"
        run("ip", "link", "add", port, "netns", self.space, "type", "veth", "peer", "name", "eth0",
            "netns", space)
        self.ip("link", "set", port, "master", "hub", "up")
        for words in (("addr", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "lo", "up"),
                      ("link", "set", "eth0", "up")):
            run("ip", "-n", space, *words)
        return port

    def shape(self, port, discipline):
        """What the machine hears."""
        run("tc", "-n", self.space, "qdisc", "replace", "dev", port, "root", *discipline)

    def close(self):
        subprocess.run(["ip", "netns", "del", self.space], capture_output=True)


class Machine:
    def __init__(self, switch, folder, name, address):
        self.switch, self.name, self.address = switch, name, address
        self.space = f"{switch.prefix}-{name}"
        self.mounted = folder / "state"  # where its processes see its disk
        self.disk, self.memory = folder / "disks" / name, folder / "memory" / name
        for path in (self.mounted, self.disk, self.memory):
            path.mkdir(parents=True, exist_ok=True)
        for path, mode in ((self.disk, "0700"), (self.memory, "1777")):
            run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode={mode}", "chaos", path)
        (self.disk / "tmp").mkdir()
        self.set_clock(0)
        run("ip", "netns", "add", self.space)
        self.inode = os.stat(f"/run/netns/{self.space}").st_ino
        self.port = switch.connect(self.space, address)
        self.slow(RATE)

    def start(self, words, log, **variables):
        """A process of this machine; its pid is that of the program itself."""
        enter = ["ip", "netns", "exec", self.space, "bash", "-c", ENTER, "enter", self.disk,
                 self.mounted, self.memory]
        variables = {"TMPDIR": f"{self.mounted}/tmp", **variables}
        with open(log, "ab") as output:
            return subprocess.Popen([*enter, *words], stdout=output, stderr=output,
                                    stdin=subprocess.DEVNULL, start_new_session=True,
                                    env={**os.environ, **variables})

    def processes(self, name=None, word=""):
        """Pids of what lives here, of a program, with a word of its command line."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                here = os.stat(f"/proc/{entry}/ns/net").st_ino == self.inode
            except OSError:
                continue
            if not here or not alive(entry) or name not in (None, name_of(entry)):
                continue
            if word in read(f"/proc/{entry}/cmdline").split("\0") or not word:
                found.append(int(entry))
        return found

    # --- the link -----------------------------------------------------------------------------
    def cut(self):
        self.switch.ip("link", "set", self.port, "down")

    def mend(self):
        self.switch.ip("link", "set", self.port, "up")

    def deafen(self):
        """What others send to it is lost; what it sends arrives."""
        self.switch.shape(self.port, NOTHING)

    def mute(self):
        """What it sends is lost at the switch, so that its own kernel knows nothing of it."""
        tc = ("tc", "-n", self.switch.space)
        run(*tc, "qdisc", "add", "dev", self.port, "ingress")
        # One instruction of BPF: return TC_ACT_SHOT.
        run(*tc, "filter", "add", "dev", self.port, "parent", "ffff:", "protocol", "all", "bpf",
            "da", "bytecode", "1,6 0 0 2,")

    def unmute(self):
        run("tc", "-n", self.switch.space, "qdisc", "del", "dev", self.port, "ingress")

    def slow(self, rate):
        """Both ways."""
        self.switch.shape(self.port, shaped(rate))
        run("tc", "-n", self.space, "qdisc", "replace", "dev", "eth0", "root", *shaped(rate))

    # --- the disk -----------------------------------------------------------------------------
    def resize(self, size):
        run("mount", "-o", f"remount,size={size}", self.disk)

    def fill(self):
        """The next write finds no space: the disk becomes as small as what lies on it."""
        for attempt in range(10):  # somebody may write meanwhile, and a disk shrinks to no less
            disk = os.statvfs(self.disk)
            used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
            try:
                return self.resize(used + disk.f_frsize * (1 + attempt))
            except Broken:
                if attempt == 9:
                    raise
        return None

    def empty(self):
        self.resize(DISK_BYTES)

    # --- the clock ----------------------------------------------------------------------------
    def set_clock(self, seconds):
        """Ahead of the system's by so much, for what was started with clock_shift.cc."""
        clock = os.open(self.disk / "clock", os.O_WRONLY | os.O_CREAT)
        os.pwrite(clock, struct.pack("=q", int(seconds * 1e9)), 0)  # one store: never half of it
        os.close(clock)

    # --- the whole machine --------------------------------------------------------------------
    def sleep(self):
        """What was stopped."""
        self.cut()
        stopped = [(pid, start_of(pid)) for pid in self.processes()]
        send(signal.SIGSTOP, stopped)
        return stopped

    def wake(self, stopped):
        send(signal.SIGCONT, stopped)
        self.mend()

    def close(self, kept=None):
        """What lies on the disk goes with it, unless there is a folder to keep it in."""
        send(signal.SIGKILL, [(pid, start_of(pid)) for pid in self.processes()])
        if kept is not None:
            subprocess.run(["cp", "-a", self.disk, kept], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.space], capture_output=True)
        for path in (self.disk, self.memory):
            subprocess.run(["umount", "--lazy", path], capture_output=True)


def send(signal_number, processes):
    """Not to what has taken the pid of one that is gone."""
    for pid, start in processes:
        if start and start_of(pid) == start:
            try:
                os.kill(pid, signal_number)
            except ProcessLookupError:
                pass
