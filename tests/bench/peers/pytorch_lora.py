#!/usr/bin/env python3
"""Peer of bench_h200_lora.sh: a step of LoRA with transformers and PEFT, of a model with random
weights in the shape of Llama 3.2 3B: base in bf16, adapters in fp32, attention by SDPA, AdamW fused.

Prints one JSON line: tokens per second (median, min, max over steps) and peak bytes of the device.
"""
import argparse
import json
import statistics
import time

import torch

import token_ids
from hugging_face import lora_of, make_model


def peak_bytes():
    # As the process that is compared with counts: with the context and what libraries hold.
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved() + torch.cuda.max_memory_allocated()


def step_of(model, tokens):
    """One step: loss over all positions, backward, clipping, update."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, betas=(0.9, 0.999), weight_decay=0.01,
                                  fused=True)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step():
        # Products of adapters in bf16 too; without autocast PEFT makes them in fp32.
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=inputs, labels=targets, shift_labels=targets,
                         use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--time", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--compile", metavar="MODE",
                        help="of the whole model: default, reduce-overhead, max-autotune")
    parser.add_argument("--compile-layers", action="store_true", help="each layer by itself")
    parser.add_argument("--checkpoint", action="store_true", help="gradient checkpointing")
    parser.add_argument("--profile", action="store_true", help="kernels of one step, to stderr")
    parser.add_argument("--label", default="as installed")
    options = parser.parse_args()

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = make_model(options.layers).to("cuda")
    if options.checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    model = lora_of(model)
    model.train()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if options.compile_layers:
        for layer in model.base_model.model.model.layers:
            layer.compile(dynamic=False)
    step_model = model
    if options.compile:
        step_model = torch.compile(model, mode=options.compile, dynamic=False)
    vocabulary = model.config.vocab_size
    ids = token_ids.draw(options.batch * (options.time + 1), vocabulary, seed=1)
    tokens = torch.tensor(ids, device="cuda").view(options.batch, options.time + 1)
    step = step_of(step_model, tokens)
    rates, loss, begin = [], 0.0, time.perf_counter()
    for number in range(options.steps + options.warm_up):
        if number == options.warm_up:
            warm_up_seconds = time.perf_counter() - begin
        start = time.perf_counter()
        loss = step()
        if number >= options.warm_up:
            rates.append(options.batch * options.time / (time.perf_counter() - start))
    print(json.dumps({
        "bench": "lora_step", "who": "pytorch", "setting": options.label, "shape": "3b",
        "batch": options.batch, "time": options.time, "precision": "bf16", "device": "cuda",
        "trained": trained, "checkpoint": options.checkpoint,
        "tokens_per_second": {"median": statistics.median(rates), "min": min(rates),
                              "max": max(rates)},
        "peak_bytes": peak_bytes(), "loss": loss, "ids": token_ids.digest(ids),
        "warm_up_seconds": round(warm_up_seconds, 1), "version": torch.__version__,
        "machine": torch.cuda.get_device_name(),
    }), flush=True)
    if options.profile:
        import sys
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as of:
            step()
        table = of.key_averages().table(sort_by="self_cuda_time_total", row_limit=40,
                                        max_name_column_width=110)
        for line in table.splitlines():
            fields = line.split()
            if len(fields) > 4:
                print(line[:112], " ".join(fields[-4:]), file=sys.stderr)


if __name__ == "__main__":
    main()
