"""Token ids of the benchmarks: the same integers as tests/bench/token_ids.h draws for Espalier.

Id k (from 0) has the weight 2^32 // (k + 1), Zipf's law, as the words of a text have. Whole numbers
throughout, so that both sides draw the same. Standard library only.
"""
import bisect
import itertools

MASK = (1 << 64) - 1


def draw(count, vocabulary, seed):
    """`count` ids below `vocabulary`."""
    ends = list(itertools.accumulate((1 << 32) // (k + 1) for k in range(vocabulary)))
    state, ids = seed & MASK, []
    for _ in range(count):  # splitmix64
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        ids.append(bisect.bisect_right(ends, z % ends[-1]))
    return ids


def digest(ids):
    """Of a sequence of ids (64-bit FNV-1a over whole ids): equal in the figures of both sides."""
    value = 0xCBF29CE484222325
    for one in ids:
        value = ((value ^ one) * 0x100000001B3) & MASK
    return f"{value:016x}"


if __name__ == "__main__":
    import sys
    print(*draw(*map(int, sys.argv[1:])))
