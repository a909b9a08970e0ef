#!/usr/bin/env python3
"""Records what Hugging Face transformers computes for model folders, or compares with a record.

    compare_with_transformers.py record  DIR...   write DIR/expected.json
    compare_with_transformers.py compare DIR...   recompute and compare with DIR/expected.json
    compare_with_transformers.py make    DIR      make tiny random models of many shapes in DIR,
                                                  and record each

DIR is any folder that AutoModelForCausalLM.from_pretrained loads: a checkpoint of ours, or another
model. The record has the form that the reference_models program reads. Needs torch and
transformers 5; computes in fp32 on the CPU. Exit status 1 when a comparison fails.
"""
import argparse
import json
import math
import pathlib
import sys

import torch
import transformers

TOLERANCE = 1e-4
ADAMW = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0,
         "decay_all_params": True}


def some_ids(vocab_size, rows=2, length=64):
    generator = torch.Generator().manual_seed(11)
    return torch.randint(1, vocab_size, (rows, length), generator=generator)


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def mean_loss(model, ids):
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                                             ids[:, 1:].reshape(-1))


def adamw_losses(model, ids, steps=10):
    optimizer = torch.optim.AdamW(model.parameters(), lr=ADAMW["lr"], betas=tuple(ADAMW["betas"]),
                                  eps=ADAMW["eps"], weight_decay=ADAMW["weight_decay"])
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = mean_loss(model, ids)
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["clip"])
        optimizer.step()
    return losses


def compute(folder, ids=None):
    """Everything that expected.json holds of one model."""
    model = load(folder)
    if ids is None:
        ids = some_ids(model.config.vocab_size)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
        log_probabilities = torch.log_softmax(logits[0, :-1].double(), -1)
        greedy = model.generate(ids[:1, :16], max_new_tokens=24, do_sample=False, pad_token_id=0)
    result = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "input_ids": ids.tolist(),
        "logits_shape": list(logits.shape),
        "logits_first_row_last_pos": logits[0, -1].tolist(),
        "logits_second_row_pos5": logits[1, 5].tolist(),
        "logits_sum_abs": logits.double().abs().sum().item(),
        "token_logprobs_row0": log_probabilities.gather(1, ids[0, 1:, None])[:, 0].tolist(),
        "greedy_24_from_first_16": greedy[0, 16:].tolist(),
    }
    loss = mean_loss(model, ids)
    loss.backward()
    norms = {name: p.grad.double().norm().item() for name, p in model.named_parameters()}
    result["loss"] = loss.item()
    result["grad_norms"] = norms
    result["grad_global_norm"] = math.sqrt(sum(norm * norm for norm in norms.values()))
    result["adamw"] = ADAMW
    result["adamw_losses"] = adamw_losses(model, ids)
    return result


def error_between(got, want):
    """Largest difference over the largest recorded magnitude."""
    got, want = torch.tensor(got).double(), torch.tensor(want).double()
    return ((got - want).abs().max() / want.abs().max()).item()


def compare(folder):
    want = json.loads((folder / "expected.json").read_text())
    got = compute(folder, torch.tensor(want["input_ids"]))
    passed = True
    for key, value in want.items():
        if key in ("grad_norms", "adamw", "input_ids") or key not in got:
            continue
        if isinstance(value, str):
            continue
        error = error_between(got[key], value)
        passed = passed and error <= TOLERANCE
        print(f"{'ok    ' if error <= TOLERANCE else 'FAILED'} {folder} {key}: {error:.2e}")
    for name, norm in want.get("grad_norms", {}).items():
        error = abs(got["grad_norms"][name] - norm) / max(norm, 1e-4 * want["grad_global_norm"])
        if error > TOLERANCE:
            passed = False
            print(f"FAILED {folder} grad_norm {name}: {error:.2e}")
    return passed


def record(folder):
    (folder / "expected.json").write_text(json.dumps(compute(folder)))
    print(f"recorded {folder}")


SMALL = dict(vocab_size=320, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)


def variants():
    """(name, config, how to save it)."""
    def rope(kind, **more):
        return {"rope_type": kind, "rope_theta": 10000.0, **more}

    llama, mistral = transformers.LlamaConfig, transformers.MistralConfig
    qwen2, qwen3 = transformers.Qwen2Config, transformers.Qwen3Config
    window = dict(use_sliding_window=True, sliding_window=20, max_window_layers=1)
    yield "mistral-window", mistral(**SMALL, sliding_window=20), {}
    yield "mistral-full", mistral(**SMALL, sliding_window=None, head_dim=16), {}
    yield "llama-all-biases", llama(**SMALL, attention_bias=True, mlp_bias=True), {}
    yield "llama-mlp-bias", llama(**SMALL, mlp_bias=True, head_dim=20), {}
    yield "llama-linear", llama(**SMALL, rope_parameters=rope("linear", factor=3.0)), {}
    yield "llama-dynamic", llama(**{**SMALL, "max_position_embeddings": 40},
                                 rope_parameters=rope("dynamic", factor=2.0)), {}
    yield "llama-yarn", llama(**SMALL, rope_parameters=rope(
        "yarn", factor=4.0, original_max_position_embeddings=32)), {}
    yield "llama-sharded", llama(**SMALL), {"max_shard_size": "60KB"}
    yield "llama-bf16", llama(**SMALL), {"dtype": torch.bfloat16}
    yield "llama-fp16-tied", llama(**{**SMALL, "tie_word_embeddings": True}), {
        "dtype": torch.float16}
    gpt2 = dict(vocab_size=320, n_embd=48, n_layer=3, n_head=4, n_positions=128)
    yield "gpt2-untied", transformers.GPT2Config(**gpt2, n_inner=80, tie_word_embeddings=False), {}
    yield "gpt2-fp16-sharded", transformers.GPT2Config(**gpt2), {
        "dtype": torch.float16, "max_shard_size": "60KB"}
    yield "qwen2-window", qwen2(**SMALL, **window), {}
    yield "qwen3-window", qwen3(**SMALL, head_dim=16, **window), {}
    yield "qwen3-biases", qwen3(**SMALL, head_dim=16, attention_bias=True), {}


def randomize(model):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                parameter.copy_(noise * 0.12)
            else:
                norm = "norm" in name or ".ln_" in name
                parameter.copy_(noise * 0.1 + (1 if norm and "weight" in name else 0))


def make(parent):
    for name, config, saving in variants():
        model = transformers.AutoModelForCausalLM.from_config(config).float()
        randomize(model)
        folder = parent / name
        options = {key: value for key, value in saving.items() if key != "dtype"}
        model.to(saving.get("dtype", torch.float32)).save_pretrained(folder, **options)
        record(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["record", "compare", "make"])
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    verbs = {"record": record, "compare": compare, "make": make}
    results = [verbs[arguments.verb](folder) for folder in arguments.folders]
    return 1 if False in results else 0


if __name__ == "__main__":
    sys.exit(main())
