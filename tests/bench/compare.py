#!/usr/bin/env python3
"""Espalier against PyTorch, from the JSON lines of a benchmark: one line for each comparison.

compare.py BENCH LINES. Each side is taken at its best setting of those that a comparison allows;
like for like comes first: fp32 with fp32. Fails when the two sides trained on different tokens.
Used by bench_cpu_step.sh, bench_lora_cpu.sh, bench_ddp.sh, bench_h200.sh, bench_h200_lora.sh,
bench_h200_grpo.sh and bench_trm.sh.
"""
import collections
import json
import statistics
import sys

FP32, ANY = ("fp32",), ("fp32", "bf16")


def fp32_gradients(setting):
    return "gradients as fp32" in setting


def leanest(setting):
    return setting.startswith("int8")


def kept(setting):
    return not leanest(setting)


def compiled(setting):
    return "compile" in setting


def eager(setting):
    return not compiled(setting)


def recomputed(setting):
    return "recompute all" in setting


def partly_recomputed(setting):
    return "recompute 0," in setting


def checkpointed(setting):
    return "checkpointed" in setting


def generated(setting):
    return "generate()" in setting


def anything(_):
    return True


# Title, precisions of ours, our settings, precisions of the peer, its settings.
COMPARISONS = {
    "cpu_step": [
        ("fp32 with fp32", FP32, kept, FP32, anything),
        ("best of each", ANY, kept, ANY, anything),
        ("least memory, fp32", FP32, leanest, FP32, anything),
        ("least memory, bf16, with the peer's best", ("bf16",), leanest, ANY, anything),
    ],
    "lora_cpu": [
        ("fp32 with fp32", FP32, anything, FP32, anything),
        ("fp32, ten layers computed again", FP32, partly_recomputed, FP32, anything),
        ("best of each", ANY, anything, ANY, anything),
    ],
    "ddp": [
        ("fp32 with fp32 gradients", FP32, fp32_gradients, FP32, fp32_gradients),
        ("best of each", ANY, anything, ANY, anything),
    ],
    "h200": [
        ("compiled", ANY, anything, ANY, compiled),
        ("eager", ANY, anything, ANY, eager),
    ],
    "trm": [
        ("eager", ANY, anything, ANY, eager),
        ("compiled", ANY, anything, ANY, compiled),
    ],
    "h200_lora": [
        ("best of each", ANY, anything, ANY, anything),
        ("both recomputed", ANY, recomputed, ANY, checkpointed),
    ],
    "h200_grpo": [
        ("best of each", ANY, anything, ANY, anything),
        ("generate()", ANY, anything, ANY, generated),
    ],
}

# Parts of a step, where both sides tell them.
PARTS = ("rollout_seconds", "learn_seconds")


class Figures:
    def __init__(self, lines):
        self.rates = collections.defaultdict(list)
        self.peaks = collections.defaultdict(list)
        self.limits = collections.defaultdict(list)
        self.parts = {part: collections.defaultdict(list) for part in PARTS}
        ids = set()
        for figure in lines:
            if "tokens_per_second" not in figure:
                continue
            name = (figure["who"], figure["precision"], figure["setting"])
            self.rates[name].append(figure["tokens_per_second"]["median"])
            self.peaks[name].append(figure.get("peak_bytes"))
            self.limits[name].append(figure.get("limit_tokens_per_second"))
            for part in PARTS:
                self.parts[part][name].append(figure.get(part))
            ids.add(figure["ids"])
        if len(ids) > 1:
            sys.exit(f"the sides trained on different tokens: {sorted(ids)}")

    def best(self, who, precisions, allowed):
        """The setting with the best median over the rounds; None where there is none."""
        names = [name for name in self.rates
                 if name[0] == who and name[1] in precisions and allowed(name[2])]
        return max(names, key=lambda name: statistics.median(self.rates[name]), default=None)


def middle(values):
    """Of those that there are; None where there are none."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def compare(bench, figures):
    for title, precisions, allowed, peer_precisions, peer_allowed in COMPARISONS[bench]:
        ours = figures.best("espalier", precisions, allowed)
        peer = figures.best("pytorch", peer_precisions, peer_allowed)
        if ours is None or peer is None:
            continue
        rate, peer_rate = (statistics.median(figures.rates[name]) for name in (ours, peer))
        line = {"bench": bench, "figure": f"espalier against pytorch, {title}",
                "ours": f"{ours[1]}, {ours[2]}", "peer": f"{peer[1]}, {peer[2]}",
                "tokens_per_second": round(rate), "peer_tokens_per_second": round(peer_rate),
                "tokens_per_second_ratio": round(rate / peer_rate, 3)}
        limit = middle(figures.limits[ours])
        if limit is not None:
            line["share_of_limit"] = round(rate / limit, 3)
        peak, peer_peak = middle(figures.peaks[ours]), middle(figures.peaks[peer])
        if peak and peer_peak:
            line["peak_memory_ratio"] = round(peak / peer_peak, 3)
        for part in PARTS:
            own, of_peer = (middle(figures.parts[part][name]) for name in (ours, peer))
            if own and of_peer:
                line[part], line["peer_" + part] = round(own, 4), round(of_peer, 4)
        yield line


def main():
    bench, path = sys.argv[1:]
    with open(path) as lines:
        figures = Figures(json.loads(line) for line in lines)
    for line in compare(bench, figures):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
