"""The decoder of the peers in plain PyTorch, 1.13 to today: each operation by the fastest call that
the installed version has, as its user would write it. Also what all peers do alike: the optimizer
and the measured step."""
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

SHAPES = {  # layers, width, heads, kv heads, feed-forward, vocabulary, tied
    "17m": (6, 384, 6, 6, 1024, 8192, True),
    "124m": (12, 768, 12, 12, 2048, 50304, False),
    "1b": (22, 2048, 16, 4, 5632, 32000, False),
    "360m": (32, 960, 15, 5, 2560, 49152, True),
}
RANKS = {"360m": 16}  # of adapters on all projections, where these alone are trained
EPS = 1e-5
HAS_ATTENTION = hasattr(F, "scaled_dot_product_attention")
HAS_GQA = HAS_ATTENTION and "enable_gqa" in F.scaled_dot_product_attention.__doc__
HAS_RMS_NORM = hasattr(F, "rms_norm")


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if HAS_RMS_NORM:
            return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), EPS)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


def rope(x, cosine, sine):  # x: [B, heads, T, D], rotated in its own type
    a, b = x.chunk(2, -1)
    cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


def repeated(x, times):
    return x if times == 1 else x.repeat_interleave(times, 1)


def causal_attention(q, k, v, mask):
    group = q.size(1) // k.size(1)
    if group > 1 and HAS_GQA and q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    k, v = repeated(k, group), repeated(v, group)
    if HAS_ATTENTION:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.size(-1)) + mask, -1) @ v


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

    def attention(self, x, cosine, sine, mask):
        b, t, _ = x.shape
        q = rope(self.q(x).view(b, t, self.heads, -1).transpose(1, 2), cosine, sine)
        k = rope(self.k(x).view(b, t, self.kv_heads, -1).transpose(1, 2), cosine, sine)
        v = self.v(x).view(b, t, self.kv_heads, -1).transpose(1, 2)
        y = causal_attention(q, k, v, mask)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))

    def forward(self, x, cosine, sine, mask):
        x = x + self.attention(self.norm1(x), cosine, sine, mask)
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
        self.register_buffer("mask", torch.full((time_steps, time_steps), -math.inf).triu(1))

    def forward(self, ids, targets):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine, self.mask)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.reshape(-1))


class Adapted(nn.Module):
    """A frozen projection with an adapter beside it, in fp32: s = 2, as alpha 32 and rank 16 give."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.empty(rank, base.in_features).uniform_(-1, 1)
                              / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * 2


def adapt(decoder, rank):
    """Freezes the decoder and puts adapters on all its projections."""
    for parameter in decoder.parameters():
        parameter.requires_grad_(False)
    for layer in decoder.layers:
        for name in ("q", "k", "v", "o", "gate", "up", "down"):
            setattr(layer, name, Adapted(getattr(layer, name), rank))
    return decoder


@torch.no_grad()
def copy_all(targets, sources):
    if hasattr(torch, "_foreach_copy_"):
        return torch._foreach_copy_(targets, sources)
    for target, source in zip(targets, sources):
        target.copy_(source)


class Optimizer:
    """AdamW after clipping; fp32 copies of weights that are bf16. Fused where PyTorch has that."""

    def __init__(self, model):
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.narrow = self.weights[0].dtype != torch.float32
        self.masters = self.weights
        if self.narrow:
            self.masters = [nn.Parameter(weight.detach().float()) for weight in self.weights]
            for master in self.masters:
                master.grad = torch.empty_like(master)
        options = dict(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        try:
            self.adamw = torch.optim.AdamW(self.masters, fused=True, **options)
        except (RuntimeError, TypeError):
            self.adamw = torch.optim.AdamW(self.masters, **options)

    def step(self):
        if self.narrow:
            copy_all([master.grad for master in self.masters],
                     [weight.grad for weight in self.weights])
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.adamw.step()
        if self.narrow:
            copy_all(self.weights, self.masters)
        for weight in self.weights:
            weight.grad = None


def train(model, optimizer, tokens, autocast, steps, warm_up, tokens_a_step):
    """Trains on the same tokens; tokens per second of each step after `warm_up`, and the loss."""
    def step():
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        return loss.item()

    rates = []
    for number in range(steps + warm_up):
        start = time.perf_counter()
        loss = step()
        if number >= warm_up:
            rates.append(tokens_a_step / (time.perf_counter() - start))
    return rates, loss
