#!/usr/bin/env python3
"""A model folder in the shape of Llama 3.2 3B with random weights, as transformers writes it, and
whether what Espalier exports is read back by PEFT and transformers with the same logits.

make FOLDER              config, weights in bf16 in shards, a small tokenizer
pairs FILE [COUNT]       prompts and completions to train on, as JSON lines
check BASE ADAPTER MERGED LOGITS [IDS]
                         of a float32 file of Espalier's logits of ids 5, 10, 15 ... (64 of them) with
                         the adapters: how far from them those of PEFT's model are, and those of the
                         merged model, and how far the base's; one JSON line
"""
import json
import sys

import torch

VOCABULARY = 128256


def ids_of_check():
    return torch.arange(1, 65).mul(5).view(1, -1)


def make(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers
    from transformers import PreTrainedTokenizerFast
    from hugging_face import make_model
    torch.manual_seed(3)
    model = make_model()
    model.save_pretrained(folder, max_shard_size="2GB")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        ["the quick brown fox jumps over the lazy dog"] * 8,
        trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end_of_text|>"],
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end_of_text|>",
                            bos_token="<|end_of_text|>").save_pretrained(folder)


def pairs(path, count=64):
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu".split()
    with open(path, "w") as file:
        for i in range(int(count)):
            prompt = " ".join(words[(i * 7 + j * 3) % 12] for j in range(200))
            completion = " ".join(words[(i + j) % 12] for j in range(250))
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
