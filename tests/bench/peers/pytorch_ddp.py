#!/usr/bin/env python3
"""Peer of bench_ddp: one rank of PyTorch DistributedDataParallel over Gloo.

The decoder of pytorch_step.py. MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE and GLOO_SOCKET_IFNAME say
who is where. Rank 0 prints one JSON line: tokens per second over all ranks (median, min, max).
"""
import argparse
import json
import platform
import statistics

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pytorch_step import SHAPES, Decoder, train


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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    batch = options.global_batch // ranks
    torch.manual_seed(2 + rank)
    tokens = torch.randint(0, SHAPES[options.shape][5], (batch, options.time + 1))
    rates, loss = train(parallel, optimizer, tokens, options.precision, options.steps, 3,
                        options.global_batch * options.time)
    if rank == 0:
        print(json.dumps({
            "bench": "ddp", "who": "pytorch ddp, gloo", "setting": options.label,
            "shape": options.shape, "global_batch": options.global_batch, "time": options.time,
            "ranks": ranks, "threads": options.threads,
            "tokens_per_second": {"median": statistics.median(rates), "min": min(rates),
                                  "max": max(rates)},
            "loss": loss, "version": torch.__version__,
            "machine": platform.processor() or platform.machine(),
        }), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
