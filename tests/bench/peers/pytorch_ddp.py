#!/usr/bin/env python3
"""Peer of bench_ddp: one rank of PyTorch DistributedDataParallel over Gloo.

The decoder, tokens and update of decoder.py and token_ids.py. MASTER_ADDR, MASTER_PORT, RANK,
WORLD_SIZE and GLOO_SOCKET_IFNAME say who is where. Rank 0 prints one JSON line: tokens per second
over all ranks (median, min, max).
"""
import argparse
import json
import platform
import statistics

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import token_ids
from decoder import SHAPES, Decoder, Optimizer, train


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="17m")
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--time", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--fp16-hook", action="store_true",
                        help="gradients travel as fp16 (Gloo has no bf16)")
    parser.add_argument("--label", default="as installed")
    options = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    model = Decoder(options.shape, options.time)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if options.fp16_hook:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    # Each rank takes its rows of one global batch.
    rows = options.global_batch // ranks
    ids = token_ids.draw(ranks * rows * (options.time + 1), SHAPES[options.shape][5], seed=1)
    tokens = torch.tensor(ids).view(ranks, rows, options.time + 1)[rank]
    rates, loss = train(parallel, Optimizer(model), tokens, options.precision == "bf16",
                        options.steps, 3, options.global_batch * options.time)
    if rank == 0:
        print(json.dumps({
            "bench": "ddp", "who": "pytorch", "setting": options.label,
            "precision": options.precision,
            "shape": options.shape, "global_batch": options.global_batch, "time": options.time,
            "ranks": ranks, "threads": options.threads,
            "tokens_per_second": {"median": statistics.median(rates), "min": min(rates),
                                  "max": max(rates)},
            "loss": loss, "ids": token_ids.digest(ids), "version": torch.__version__,
            "machine": platform.processor() or platform.machine(),
        }), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
