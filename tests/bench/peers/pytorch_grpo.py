#!/usr/bin/env python3
"""Peer of bench_h200_grpo.sh: a step of GRPO with transformers and PEFT, of a model with random
weights in the shape of Llama 3.2 3B: completions of one prompt by generate() with a static cache,
whose decoding transformers compiles, or by a loop over the compiled model; log-probabilities of the
completions' tokens alone, by the policy and by the model without adapters; the clipped loss with its
divergence; AdamW fused. No completion ends before it has all its tokens.

--merge adds the adapters to the weights while it samples and takes them off again, which rounds
weights of 16 bits a little differently each time.

Prints one JSON line: new tokens per second of whole steps (median, min, max), the seconds of both
parts, and peak bytes of the device.
"""
import argparse
import contextlib
import json
import statistics
import sys
import time

import torch
from transformers import StaticCache

import token_ids
from hugging_face import lora_of, make_model
from pytorch_lora import peak_bytes

CLIP = 0.2


class Peer:
    def __init__(self, options):
        self.options = options
        model = make_model(options.layers).to("cuda")
        if options.checkpoint:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        # None that ends a text, and no other limit of sampling than the number of tokens.
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        self.model = lora_of(model)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=2e-5, betas=(0.9, 0.999),
                                           weight_decay=0.01, fused=True)
        vocabulary = model.config.vocab_size
        self.ids = token_ids.draw(options.prompt, vocabulary, seed=1)
        prompt = torch.tensor(self.ids, device="cuda")
        self.prompts = prompt.expand(options.samples, -1).contiguous()
        self.layers, self.compiled = model.model.layers, []
        if options.compile_layers:
            for layer in self.layers:
                layer.compile(dynamic=False)
            self.compiled = [layer._compiled_call_impl for layer in self.layers]
        self.cache, self.decode = None, None
        if options.loop:
            self.cache = StaticCache(config=model.config,
                                     max_cache_len=options.prompt + options.tokens)
            self.decode = torch.compile(self.next_ids, mode="reduce-overhead", dynamic=False)
        self.log_p = log_probabilities
        if options.compile_layers:
            self.log_p = torch.compile(log_probabilities, dynamic=False)

    def layers_are_compiled(self, on):
        # generate() compiles what it decodes with as a whole.
        for layer, call in zip(self.layers, self.compiled):
            layer._compiled_call_impl = call if on else None

    @torch.no_grad()
    def sample(self):
        options, model = self.options, self.model
        model.eval()
        self.layers_are_compiled(False)
        if options.merge:
            model.merge_adapter()
        autocast = contextlib.nullcontext() if options.merge else bf16()
        with autocast:
            rows = self.sampled_by_loop() if options.loop else model.generate(
                input_ids=self.prompts, attention_mask=torch.ones_like(self.prompts),
                do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                max_new_tokens=options.tokens, cache_implementation="static")
        if options.merge:
            model.unmerge_adapter()
        self.layers_are_compiled(True)
        model.train()
        assert rows.shape == (options.samples, options.prompt + options.tokens), rows.shape
        return rows.clone()

    def next_ids(self, ids, positions):
        logits = self.model.base_model.model(
            input_ids=ids, position_ids=positions.unsqueeze(0), cache_position=positions,
            past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits
        return torch.multinomial(logits[:, -1].float().softmax(-1), 1)

    def sampled_by_loop(self):
        options = self.options
        self.cache.reset()
        ids = self.next_ids(self.prompts, torch.arange(options.prompt, device="cuda"))
        rows, position = [self.prompts, ids], torch.tensor([options.prompt], device="cuda")
        for _ in range(options.tokens - 1):
            torch.compiler.cudagraph_mark_step_begin()
            ids = self.decode(ids, position).clone()
            rows.append(ids)
            position = position + 1
        return torch.cat(rows, 1)

    def found(self, rows):
        """Of each new token, [samples, tokens]."""
        tokens = self.options.tokens
        logits = self.model(input_ids=rows[:, :-1], use_cache=False, logits_to_keep=tokens).logits
        return self.log_p(logits, rows[:, -tokens:])

    def learn(self, rows):
        options = self.options
        rewards = torch.arange(options.samples, device="cuda", dtype=torch.float) % 2
        advantage = ((rewards - rewards.mean()) / (rewards.std() + 1e-4))[:, None]
        # Products of adapters in bf16 too; without autocast PEFT makes them in fp32.
        with torch.no_grad(), bf16(), self.model.disable_adapter():
            reference = self.found(rows) if options.kl > 0 else None
        with bf16():
            log_p = self.found(rows)
        ratio = (log_p - log_p.detach()).exp()
        loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        if reference is not None:
            d = reference - log_p
            loss = loss + options.kl * (torch.expm1(d) - d)
        loss = loss.mean()
        self.mean_log_p = log_p.detach().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def bf16():
    return torch.autocast("cuda", torch.bfloat16)


def log_probabilities(logits, targets):
    logits = logits.float()
    chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen - logits.logsumexp(-1)


def seconds_of(work):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin, result


def profile_of(step):
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as of:
        step()
    print(of.key_averages().table(sort_by="self_cuda_time_total", row_limit=25,
                                  max_name_column_width=90), file=sys.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompt", type=int, default=350)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--kl", type=float, default=0.04)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--loop", action="store_true",
                        help="sample by a loop of our own over the compiled model, not generate()")
    parser.add_argument("--merge", action="store_true", help="adapters, while it samples")
    parser.add_argument("--compile-layers", action="store_true", help="each by itself, to learn")
    parser.add_argument("--checkpoint", action="store_true", help="gradient checkpointing")
    parser.add_argument("--profile", action="store_true", help="kernels of both, to stderr")
    parser.add_argument("--label", default="as installed")
    options = parser.parse_args()

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    peer = Peer(options)
    rollout, learn, rates, loss = [], [], [], 0.0
    begin = time.perf_counter()
    for number in range(options.steps + options.warm_up):
        if number == options.warm_up:
            warm_up_seconds = time.perf_counter() - begin
        sampled, rows = seconds_of(peer.sample)
        learnt, loss = seconds_of(lambda: peer.learn(rows))
        if number >= options.warm_up:
            rollout.append(sampled)
            learn.append(learnt)
            rates.append(options.samples * options.tokens / (sampled + learnt))
    print(json.dumps({
        "bench": "grpo_step", "who": "pytorch", "setting": options.label, "shape": "3b",
        "prompt": options.prompt, "tokens": options.tokens, "samples": options.samples,
        "precision": "bf16", "device": "cuda", "trained": sum(p.numel() for p in peer.trained),
        "checkpoint": options.checkpoint,
        "tokens_per_second": {"median": statistics.median(rates), "min": min(rates),
                              "max": max(rates)},
        "rollout_seconds": statistics.median(rollout), "learn_seconds": statistics.median(learn),
        "peak_bytes": peak_bytes(), "loss": loss, "mean_log_p": peer.mean_log_p.item(),
        "ids": token_ids.digest(peer.ids),
        "warm_up_seconds": round(warm_up_seconds, 1), "version": torch.__version__,
        "machine": torch.cuda.get_device_name(),
    }), flush=True)
    if options.profile:
        profile_of(lambda: peer.learn(peer.sample()))


if __name__ == "__main__":
    main()
