#!/usr/bin/env python3
"""Peer of the step benchmarks: the same decoder, tokens and update in plain PyTorch; of shape 360m
adapters alone are trained.

Prints one JSON line: tokens per second (median, min, max over steps) and peak resident bytes.
"""
import argparse
import json
import platform
import resource
import statistics
import sys

import torch

import token_ids
from decoder import RANKS, SHAPES, Decoder, Optimizer, adapt, train


def libraries():
    """What is mapped of the libraries that decide the speed on a processor, each with its folder."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line[line.index("/"):].strip() for line in maps if "/" in line}
    except OSError:
        return []
    names = {"/".join(path.split("/")[-2:]) for path in paths}
    return sorted(name for name in names
                  if any(part in name for part in ("libopenblas", "mkl", "dnnl", "jemalloc")))


def peak_bytes(device):
    if device.type == "cuda":
        # As the process that is compared with counts: with the context and what libraries hold.
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved() + torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="17m")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--time", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--weights", choices=["fp32", "bf16"], default="fp32",
                        help="bf16: beside fp32 copies that are updated, instead of autocast")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", metavar="MODE", help="default, reduce-overhead, max-autotune")
    parser.add_argument("--label", default="as installed")
    options = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    model = Decoder(options.shape, options.time).to(device)
    if options.weights == "bf16":
        model = model.to(torch.bfloat16)
    rank = RANKS.get(options.shape)
    if rank:
        model = adapt(model, rank)
    optimizer = Optimizer(model)
    step_model = torch.compile(model, mode=options.compile) if options.compile else model
    ids = token_ids.draw(options.batch * (options.time + 1), SHAPES[options.shape][5], seed=1)
    tokens = torch.tensor(ids, device=device).view(options.batch, options.time + 1)
    # Adapters are in fp32 beside weights in bf16.
    autocast = options.precision == "bf16" and (options.weights == "fp32" or bool(rank))
    rates, loss = train(step_model, optimizer, tokens, autocast, options.steps, options.warm_up,
                        options.batch * options.time)
    print(json.dumps({
        "bench": "lora_step" if rank else "train_step", "who": "pytorch", "setting": options.label,
        "trained": sum(weight.numel() for weight in optimizer.weights),
        "shape": options.shape, "batch": options.batch, "time": options.time,
        "precision": options.precision, "device": options.device, "threads": options.threads,
        "tokens_per_second": {"median": statistics.median(rates), "min": min(rates),
                              "max": max(rates)},
        "peak_bytes": peak_bytes(device), "loss": loss, "ids": token_ids.digest(ids),
        "libraries": libraries(), "version": torch.__version__,
        "machine": platform.processor() or platform.machine(),
    }))


if __name__ == "__main__":
    main()
