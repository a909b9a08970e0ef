#!/usr/bin/env python3
"""Peer of `deploy/dev bench trm`: a tiny recursive model and its step under deep supervision as the
original has them, in plain PyTorch, 1.13 to today: weights in fp32 that are cast where they are
used, RMS norms without a weight behind each part, rotation by halves, the last cycle alone with
gradients, a carry on the device whose halted rows begin anew. The update is AdamW, fused where
PyTorch has that.

Prints one JSON line: tokens per second (median, min, max over steps) and peak bytes.
"""
import argparse
import json
import math
import platform
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import token_ids
from pytorch_step import libraries, peak_bytes

SHAPES = {  # layers, width, heads, h cycles, l cycles, steps, positions, ids, causal, exploration
    "puzzle": (2, 512, 8, 3, 6, 16, 81, 11, False, 0.1),
    "chat": (4, 384, 12, 1, 1, 1, 512, 50266, True, 0.0),
}
EPS = 1e-5
HAS_ATTENTION = hasattr(F, "scaled_dot_product_attention")


def truncated(*shape, std):
    return nn.init.trunc_normal_(torch.empty(*shape), std=std, a=-2 * std, b=2 * std)


class CastLinear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(truncated(outputs, inputs, std=1 / math.sqrt(inputs)))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


def norm(x):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype)


def turned(x, cosine, sine):  # x: [B, T, heads, D], in fp32
    a, b = x.chunk(2, -1)
    return (x * cosine + torch.cat((-b, a), -1) * sine).to(x.dtype)


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        inner = -(-round(4 * width * 2 / 3) // 256) * 256
        self.qkv, self.o = CastLinear(width, 3 * width), CastLinear(width, width)
        self.gate_up, self.down = CastLinear(width, 2 * inner), CastLinear(inner, width)

    def attention(self, x, cosine, sine, mask):
        b, t, width = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).unbind(2)
        q, k = turned(q, cosine, sine).transpose(1, 2), turned(k, cosine, sine).transpose(1, 2)
        v = v.transpose(1, 2)
        if HAS_ATTENTION:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(2, 3) / math.sqrt(q.size(-1))
            y = torch.softmax(scores + mask if self.causal else scores, -1) @ v
        return self.o(y.transpose(1, 2).reshape(b, t, width))

    def forward(self, x, cosine, sine, mask):
        x = norm(x + self.attention(x, cosine, sine, mask))
        gate, up = self.gate_up(x).chunk(2, -1)
        return norm(x + self.down(F.silu(gate) * up))


def log_stablemax(x):
    s = torch.where(x < 0, 1 / (1 - x.clamp(max=0)), x + 1)  # without a gradient of 0 / 0 at 1
    return torch.log(s / s.sum(-1, keepdim=True))


class Trm(nn.Module):
    def __init__(self, shape, dtype):
        super().__init__()
        (layers, width, heads, self.high_cycles, self.low_cycles, self.steps, self.positions,
         self.vocabulary, causal, self.exploration) = SHAPES[shape]
        self.dtype, self.scale, self.last = dtype, math.sqrt(width), causal
        self.stablemax = not causal
        self.embedding = nn.Parameter(truncated(self.vocabulary, width, std=1 / self.scale))
        self.blocks = nn.ModuleList(Block(width, heads, causal) for _ in range(layers))
        self.head = CastLinear(width, self.vocabulary)
        self.halting = nn.Linear(width, 2)
        nn.init.zeros_(self.halting.weight)
        nn.init.constant_(self.halting.bias, -5)
        self.register_buffer("high", truncated(width, std=1.0).to(dtype))
        self.register_buffer("low", truncated(width, std=1.0).to(dtype))
        dim = width // heads
        frequency = 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(self.positions).float(), frequency)
        angle = torch.cat((angle, angle), -1)[:, None]
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())
        t = self.positions
        self.register_buffer("mask", torch.full((t, t), -math.inf).triu(1))

    def through(self, x):
        for block in self.blocks:
            x = block(x, self.cosine.to(x.dtype), self.sine.to(x.dtype), self.mask.to(x.dtype))
        return x

    def cycle(self, high, low, injected):
        for _ in range(self.low_cycles):
            low = self.through(low + high + injected)
        return self.through(high + low), low

    def forward(self, ids, targets, high, low):
        """(loss summed over samples, states, logits of halting)"""
        injected = self.scale * F.embedding(ids, self.embedding.to(self.dtype))
        with torch.no_grad():
            for _ in range(self.high_cycles - 1):
                high, low = self.cycle(high, low, injected)
        high, low = self.cycle(high, low, injected)
        logits = self.head(high).float()
        log_p = log_stablemax(logits) if self.stablemax else F.log_softmax(logits, -1)
        of_tokens = -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            right = (logits.argmax(-1) == targets).all(-1)
        halting = self.halting(high[:, -1 if self.last else 0].float())
        of_halting = F.binary_cross_entropy_with_logits(halting[:, 0], right.float(),
                                                        reduction="sum")
        loss = of_tokens.mean(-1).sum() + 0.5 * of_halting
        return loss, high.detach(), low.detach(), halting.detach()


class Supervised:
    """The carry of the slots, as the original keeps it: of rows that halted nothing stays."""

    def __init__(self, model, compiled, batch, device):
        self.model, self.compiled = model, compiled
        shape = (batch, model.positions, model.high.numel())
        self.high = torch.zeros(shape, dtype=model.dtype, device=device)
        self.low = torch.zeros_like(self.high)
        self.halted = torch.ones(batch, dtype=torch.bool, device=device)
        self.taken = torch.zeros(batch, dtype=torch.long, device=device)
        self.ids = torch.zeros(batch, model.positions, dtype=torch.long, device=device)
        self.targets = torch.zeros_like(self.ids)

    def step(self, ids, targets):
        model, fresh = self.model, self.halted
        high = torch.where(fresh[:, None, None], model.high, self.high)
        low = torch.where(fresh[:, None, None], model.low, self.low)
        self.ids = torch.where(fresh[:, None], ids, self.ids)
        self.targets = torch.where(fresh[:, None], targets, self.targets)
        loss, self.high, self.low, halting = self.compiled(self.ids, self.targets, high, low)
        self.taken = torch.where(fresh, torch.zeros_like(self.taken), self.taken) + 1
        self.halted = self.taken >= model.steps
        if model.steps > 1:
            explores = torch.rand(halting.size(0), device=ids.device) < model.exploration
            least = torch.randint_like(self.taken, 2, model.steps + 1) * explores
            self.halted = self.halted | ((halting[:, 0] > 0) & (self.taken >= least))
        return loss


def adamw(model):
    options = dict(lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **options)
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(model.parameters(), **options)


def data(options, model, device):
    """ids and targets [batch, positions]; the ids drawn, for the digest."""
    batch, time_steps = options.batch, model.positions
    if model.last:
        drawn = token_ids.draw(batch * time_steps + 1, model.vocabulary, seed=1)
        row = torch.tensor(drawn, device=device)
        return row[:-1].view(batch, -1), row[1:].reshape(batch, -1), drawn
    drawn = token_ids.draw(2 * batch * time_steps, model.vocabulary, seed=1)
    both = torch.tensor(drawn, device=device).view(batch, 2, time_steps)
    return both[:, 0].contiguous(), both[:, 1].contiguous(), drawn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="puzzle")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", metavar="MODE", help="default, reduce-overhead, max-autotune")
    parser.add_argument("--label", default="as installed")
    options = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    model = Trm(options.shape, torch.bfloat16 if options.precision == "bf16" else torch.float32)
    model = model.to(device)
    compiled = torch.compile(model, mode=options.compile) if options.compile else model
    slots = Supervised(model, compiled, options.batch, device)
    optimizer = adamw(model)
    ids, targets, drawn = data(options, model, device)
    rates = []
    for number in range(options.steps + options.warm_up):
        start = time.perf_counter()
        loss = slots.step(ids, targets) / options.batch
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.item()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if number >= options.warm_up:
            rates.append(ids.numel() / (time.perf_counter() - start))
    print(json.dumps({
        "bench": "trm_step", "who": "pytorch", "setting": options.label, "shape": options.shape,
        "trained": sum(parameter.numel() for parameter in model.parameters()),
        "batch": options.batch, "time": model.positions, "precision": options.precision,
        "device": options.device, "threads": options.threads,
        "tokens_per_second": {"median": statistics.median(rates), "min": min(rates),
                              "max": max(rates)},
        "peak_bytes": peak_bytes(device), "loss": loss, "ids": token_ids.digest(drawn),
        "libraries": libraries(), "version": torch.__version__,
        "machine": platform.processor() or platform.machine(),
    }))


if __name__ == "__main__":
    main()
