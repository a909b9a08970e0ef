#!/usr/bin/env python3
"""A model folder in the shape of Llama 3.2 3B with random weights, laid out as transformers writes
it, and whether what Espalier exports is read back by PEFT and transformers with the same logits.

make FOLDER              config, weights in bf16 in shards, a small tokenizer
pairs FILE [COUNT]       prompts and completions to train on, as JSON lines
check BASE ADAPTER MERGED LOGITS
                         of a float32 file of Espalier's logits of ids 5, 10, 15 ... (64 of them) with
                         the adapters: how far from them those of PEFT's model are, and those of the
                         merged model, and how far the base's; one JSON line
"""
import json
import math
import os
import sys

import torch

VOCABULARY = 128256
SHARD_BYTES = 2 << 30
DEVICE = "cuda"
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu".split()


def ids_of_check():
    return torch.arange(1, 65).mul(5).view(1, -1)


def shapes_of(config):
    """Name and shape of each tensor, in the order of the shards; the head is tied."""
    width, head = config.hidden_size, config.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, width)
    inner = config.intermediate_size
    query, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    for layer in range(config.num_hidden_layers):
        for name, shape in (
                ("input_layernorm", (width,)), ("self_attn.q_proj", (query, width)),
                ("self_attn.k_proj", (keys, width)), ("self_attn.v_proj", (keys, width)),
                ("self_attn.o_proj", (width, query)), ("post_attention_layernorm", (width,)),
                ("mlp.gate_proj", (inner, width)), ("mlp.up_proj", (inner, width)),
                ("mlp.down_proj", (width, inner))):
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (width,)


def write_shard(path, tensors):
    """[(name, shape)] as safetensors in bf16: norms of one, the rest drawn on the GPU. Bytes."""
    header, offset = {}, 0
    for name, shape in tensors:
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape in tensors:
            values = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE)
            values = values.normal_(0, 0.02) if len(shape) > 1 else values.fill_(1)
            file.write(values.view(torch.int16).cpu().numpy().tobytes())
    return offset


def make(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from hugging_face import make_config
    torch.manual_seed(3)
    os.makedirs(folder, exist_ok=True)
    config = make_config()
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch.bfloat16
    config.bos_token_id = config.eos_token_id = 0  # of the tokenizer below
    config.save_pretrained(folder)
    shards, size = [[]], 0
    for name, shape in shapes_of(config):
        size += 2 * math.prod(shape)
        if size > SHARD_BYTES:
            shards.append([])
            size = 2 * math.prod(shape)
        shards[-1].append((name, shape))
    files = {f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors": shard
             for i, shard in enumerate(shards)}
    total = sum(write_shard(f"{folder}/{file}", shard) for file, shard in files.items())
    with open(f"{folder}/model.safetensors.index.json", "w") as file:
        json.dump({"metadata": {"total_size": total},
                   "weight_map": {name: path for path, shard in files.items()
                                  for name, _ in shard}}, file)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        WORDS * 8, trainers.BpeTrainer(vocab_size=400, special_tokens=["<|end_of_text|>"],
                                       initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.save(f"{folder}/tokenizer.json")
    with open(f"{folder}/tokenizer_config.json", "w") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end_of_text|>",
                   "bos_token": "<|end_of_text|>"}, file)


def pairs(path, count=64):
    with open(path, "w") as file:
        for i in range(int(count)):
            prompt = " ".join(WORDS[(i * 7 + j * 3) % 12] for j in range(400))
            completion = " ".join(WORDS[(i + j) % 12] for j in range(600))
            file.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=ids_of_check().to("cuda")).logits[0].float()


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def check(base, adapter, merged, logits):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    expected = torch.from_file(logits, size=64 * VOCABULARY).view(64, VOCABULARY).to("cuda")

    def load(folder, dtype):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to("cuda")
    line = {"bench": "lora_folder", "figure": "distance of logits from espalier's, relative"}
    model = load(base, torch.float32)
    line["base, fp32"] = distance(logits_of(model), expected)
    peft = PeftModel.from_pretrained(model, adapter)
    with_adapter = logits_of(peft)
    line["peft, fp32"] = distance(with_adapter, expected)
    line["same choice, peft"] = (
        with_adapter.argmax(-1) == expected.argmax(-1)).float().mean().item()
    del model, peft
    line["peft, bf16"] = distance(
        logits_of(PeftModel.from_pretrained(load(base, torch.bfloat16), adapter)), expected)
    line["merged, fp32"] = distance(logits_of(load(merged, torch.float32)), expected)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    {"make": make, "pairs": pairs, "check": check}[sys.argv[1]](*sys.argv[2:])
