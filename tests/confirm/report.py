"""What was found, line by line: a verdict, what was looked at, the figure seen, and the fact that
it confirms. A check that breaks is a FAIL of its own and ends nothing else. Used by all of this
folder.
"""
import subprocess
import sys

PASS, FAIL, NOT_HERE = "PASS", "FAIL", "NOT HERE"


class NotHere(Exception):
    """This machine, or this way of calling, has nothing to look at."""


class Report:
    def __init__(self, out=sys.stdout):
        self.lines, self.out = [], out

    def add(self, verdict, name, figure, fact):
        self.lines.append((verdict, name, figure, fact))
        print(f"{verdict:<8}  {name:<28}  {figure}  [{fact}]", file=self.out, flush=True)

    def check(self, name, fact, look):
        """`look` returns (whether it holds, the figure); or says NotHere."""
        try:
            holds, figure = look()
            self.add(PASS if holds else FAIL, name, figure, fact)
        except NotHere as why:
            self.add(NOT_HERE, name, str(why), fact)
        except Exception as error:  # pylint: disable=broad-except
            self.add(FAIL, name, one_line(f"{type(error).__name__}: {error}"), fact)

    def count(self, verdict):
        return sum(line[0] == verdict for line in self.lines)

    def finish(self):
        print(", ".join(f"{self.count(verdict)} {verdict}" for verdict in (PASS, FAIL, NOT_HERE)),
              file=self.out, flush=True)
        return 1 if self.count(FAIL) else 0


def one_line(text, most=300):
    return " ".join(text.split())[:most]


def output_of(*words, seconds=60, **options):
    """Of a program that succeeds; what both of its streams said otherwise is the error's."""
    try:
        done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=seconds,
                              check=False, **options)
    except FileNotFoundError as error:
        raise NotHere(f"no '{words[0]}' on this machine") from error
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {text[-600:]}")
    return text


def near(one, other, part, least):
    """Whether two figures differ by at most a part of the larger, or by `least`."""
    return abs(one - other) <= max(part * max(abs(one), abs(other)), least)


def gigabytes(count):
    return f"{count / 1e9:.2f} GB"
