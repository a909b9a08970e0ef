#!/usr/bin/env python3
"""Peer of bench_cpu_step: the same decoder and training step in plain PyTorch.

Prints one JSON line: tokens per second (median, min, max over steps) and peak resident bytes.
"""
import argparse
import json
import math
import platform
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

SHAPES = {  # layers, width, heads, kv heads, feed-forward, vocabulary, tied
    "17m": (6, 384, 6, 6, 1024, 8192, True),
    "124m": (12, 768, 12, 12, 2048, 50304, False),
    "1b": (22, 2048, 16, 4, 5632, 32000, False),
}


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rope(x, cosine, sine):  # x: [B, heads, T, D]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


class Layer(nn.Module):
    def __init__(self, width, heads, kv_heads, feed_forward):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.dim, bias=False)
        self.v = nn.Linear(width, kv_heads * self.dim, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, feed_forward, bias=False)
        self.up = nn.Linear(width, feed_forward, bias=False)
        self.down = nn.Linear(feed_forward, width, bias=False)

    def attention(self, x, cosine, sine):
        b, t, _ = x.shape
        q = rope(self.q(x).view(b, t, self.heads, -1).transpose(1, 2), cosine, sine)
        k = rope(self.k(x).view(b, t, self.kv_heads, -1).transpose(1, 2), cosine, sine)
        v = self.v(x).view(b, t, self.kv_heads, -1).transpose(1, 2)
        if self.kv_heads != self.heads:
            k = k.repeat_interleave(self.heads // self.kv_heads, 1)
            v = v.repeat_interleave(self.heads // self.kv_heads, 1)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.full((t, t), -math.inf).triu(1)
            y = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(self.dim) + mask, -1) @ v
        return self.o(y.transpose(1, 2).reshape(b, t, -1))

    def forward(self, x, cosine, sine):
        x = x + self.attention(self.norm1(x), cosine, sine)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, shape, time_steps):
        super().__init__()
        layers, width, heads, kv_heads, feed_forward, vocabulary, tied = SHAPES[shape]
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            Layer(width, heads, kv_heads, feed_forward) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        dim = width // heads
        frequency = 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(time_steps).float(), frequency)
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def forward(self, ids, targets):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.reshape(-1))


def train(model, optimizer, tokens, precision, steps, warm_up, tokens_a_step):
    """Trains on the same tokens; returns tokens per second of each step after the first, the loss."""
    def step():
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    rates = []
    for number in range(steps + warm_up):
        start = time.perf_counter()
        loss = step()
        if number >= warm_up:
            rates.append(tokens_a_step / (time.perf_counter() - start))
    return rates, loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="17m")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--time", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--label", default="as installed")
    options = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    model = Decoder(options.shape, options.time).to(device)
    fused = {"fused": True} if device.type == "cuda" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95),
                                  weight_decay=0.1, **fused)
    step_model = torch.compile(model) if options.compile else model
    vocabulary = SHAPES[options.shape][5]
    tokens = torch.randint(0, vocabulary, (options.batch, options.time + 1), device=device)
    rates, loss = train(step_model, optimizer, tokens, options.precision, options.steps, 2,
                        options.batch * options.time)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024)
    if device.type == "cuda":
        # As the process that is compared with counts: with the context and what libraries hold.
        free, total = torch.cuda.mem_get_info()
        peak = total - free - torch.cuda.memory_reserved() + torch.cuda.max_memory_allocated()
    print(json.dumps({
        "bench": "train_step", "who": "pytorch", "setting": options.label,
        "shape": options.shape, "batch": options.batch, "time": options.time,
        "precision": options.precision, "device": options.device, "threads": options.threads,
        "tokens_per_second": {"median": statistics.median(rates), "min": min(rates),
                              "max": max(rates)},
        "peak_bytes": peak, "loss": loss, "version": torch.__version__,
        "machine": platform.processor() or platform.machine(),
    }))


if __name__ == "__main__":
    main()
