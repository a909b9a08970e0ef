#!/usr/bin/env python3
"""Compares what llama.cpp computes of exported GGUF files with what was recorded for tests/data.

    compare_with_llama_cpp.py --llama LIBRARIES [--dtype fp32] [--worker build/bin/espalier-worker]

Every model of tests/data/models is exported, and its logits, log-probabilities and greedy text are
compared with expected.json, as far as the file's context reaches; with adapter/ also with the
adapter merged. Every tokenizer of tests/data is put beside a model, and the ids that llama.cpp cuts
texts into are compared with those recorded. Exit status 1 when one differs that should not. Needs
Python alone.

LIBRARIES is the folder of libllama.so that npm's package @node-llama-cpp/linux-x64 brings:

    npm install --ignore-scripts @node-llama-cpp/linux-x64@3.22.1     (llama.cpp v0.5.0)
    LIBRARIES = node_modules/@node-llama-cpp/linux-x64/bins/linux-x64

Another version may lay its parameters out otherwise; the script sees that and says so.
"""
import argparse
import ctypes
import glob
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of the largest logit. llama.cpp looks GELU up in a table of fp16.
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 3e-2, "q8_0": 5e-2}
GELU_TOLERANCE = 2e-3


def composed(text):
    return unicodedata.normalize("NFC", text)


# Texts that llama.cpp is known to cut otherwise, as the export says: those that are not composed,
# that begin with a space, or go on behind special tokens; tokens with options.
NOTED = {"qwen2-tiny": lambda text: composed(text) != text,
         "qwen-added": lambda text: composed(text) != text or
         any(token in text for token in ("Café", "word", "<tool>")),
         "mistral": lambda text: text[0] in " ▁" or
         any(token in text for token in ("<s>", "</s>", "<unk>"))}


class Parameters(ctypes.Structure):
    """llama_model_params or llama_context_params, of whichever size they are."""
    _fields_ = [("bytes", ctypes.c_ubyte * 512)]

    def get(self, at):
        return struct.unpack_from("<i", bytes(self.bytes), at)[0]

    def put(self, at, value):
        struct.pack_into("<i", self.bytes, at, value)


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)),
                ("embd", ctypes.c_void_p), ("pos", ctypes.POINTER(ctypes.c_int32)),
                ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
                ("logits", ctypes.POINTER(ctypes.c_int8))]


class Llama:
    # Places in llama_context_params, with what is there by default.
    N_CTX, N_BATCH, THREADS, THREADS_BATCH, FLASH, TYPE_K, TYPE_V = 0, 4, 28, 32, 52, 104, 108
    DEFAULTS = {N_CTX: 512, N_BATCH: 2048, THREADS: 4, THREADS_BATCH: 4, FLASH: -1,
                TYPE_K: 1, TYPE_V: 1}

    def __init__(self, folder):
        self.lib = self.load(folder)
        for name in ("llama_model_load_from_file", "llama_init_from_model",
                     "llama_model_get_vocab", "llama_get_memory"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.llama_model_default_params.restype = Parameters
        self.lib.llama_context_default_params.restype = Parameters
        self.lib.llama_batch_init.restype = Batch
        self.lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
        self.quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda level, text, data: None)
        self.lib.llama_log_set(self.quiet, None)
        self.lib.llama_backend_init()
        self.context_parameters = self.lib.llama_context_default_params()
        seen = {at: self.context_parameters.get(at) for at in self.DEFAULTS}
        if seen != self.DEFAULTS:
            sys.exit(f"this libllama lays llama_context_params out otherwise: {seen}")

    @staticmethod
    def load(folder):
        def open_one(pattern):
            path = glob.glob(os.path.join(folder, pattern))
            if not path:
                sys.exit(f"{folder} has no {pattern}")
            return ctypes.CDLL(path[0], mode=ctypes.RTLD_GLOBAL)
        open_one("libggml-base*.so")
        ggml = open_one("libggml.*so")
        ggml.ggml_backend_load_all_from_path(folder.encode())
        return open_one("libllama.*so")


class Model:
    def __init__(self, llama, path, n_ctx=512):
        self.lib = llama.lib
        self.model = ctypes.c_void_p(self.lib.llama_model_load_from_file(
            str(path).encode(), self.lib.llama_model_default_params()))
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self.vocab = ctypes.c_void_p(self.lib.llama_model_get_vocab(self.model))
        self.vocab_size = self.lib.llama_vocab_n_tokens(self.vocab)
        self.trained_context = self.lib.llama_model_n_ctx_train(self.model)
        parameters = Parameters.from_buffer_copy(llama.context_parameters)
        for at, value in ((llama.N_CTX, n_ctx), (llama.THREADS, 1), (llama.THREADS_BATCH, 1),
                          (llama.FLASH, 0), (llama.TYPE_K, 0), (llama.TYPE_V, 0)):  # 0: fp32
            parameters.put(at, value)
        self.context = ctypes.c_void_p(self.lib.llama_init_from_model(self.model, parameters))
        self.batch = self.lib.llama_batch_init(n_ctx, 0, 1)

    def close(self):
        self.lib.llama_batch_free(self.batch)
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)

    def logits(self, ids, at=0):
        """Of every id, the first of which is at position `at`; 0 forgets what was before."""
        if at == 0:
            memory = ctypes.c_void_p(self.lib.llama_get_memory(self.context))
            self.lib.llama_memory_clear(memory, ctypes.c_bool(True))
        self.batch.n_tokens = len(ids)
        for i, one in enumerate(ids):
            self.batch.token[i] = one
            self.batch.pos[i] = at + i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            self.batch.logits[i] = 1
        status = self.lib.llama_decode(self.context, self.batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        return [self.lib.llama_get_logits_ith(self.context, i)[:self.vocab_size]
                for i in range(len(ids))]

    def greedy(self, ids, more):
        made = []
        row = self.logits(ids)[-1]
        while len(made) < more:
            made.append(max(range(len(row)), key=row.__getitem__))
            row = self.logits([made[-1]], at=len(ids) + len(made) - 1)[0]
        return made

    def tokenize(self, text):
        data = text.encode()
        room = len(data) * 4 + 16
        ids = (ctypes.c_int32 * room)()
        count = self.lib.llama_tokenize(self.vocab, data, len(data), ids, room,
                                        ctypes.c_bool(True), ctypes.c_bool(True))
        return list(ids[:count])


def export(worker, folder, output, dtype):
    done = subprocess.run([worker, "export", "--checkpoint", str(folder), "--format", "gguf",
                           "--dtype", dtype, "--output", str(output)],
                          capture_output=True, text=True)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def error(got, want):
    return max(abs(a - b) for a, b in zip(got, want)) / max(abs(b) for b in want)


def log_probability(row, one):
    top = max(row)
    return row[one] - top - math.log(sum(math.exp(x - top) for x in row))


def compare_model(model, config, expected):
    """Names of what was compared, with the errors; as far as the context reaches."""
    rows = expected["input_ids"]
    reach = min(model.trained_context, len(rows[0]))
    first = model.logits(rows[0][:reach])
    found = {}
    if reach == len(rows[0]):
        found["last logits"] = error(first[-1], expected["logits_first_row_last_pos"])
    if len(rows) > 1:
        second = model.logits(rows[1][:reach])
        found["logits at 5"] = error(second[5], expected["logits_second_row_pos5"])
    recorded = expected["token_logprobs_row0"][:reach - 1]
    found["log-probabilities"] = error(
        [log_probability(first[i], rows[0][i + 1]) for i in range(len(recorded))], recorded)
    ends = config.get("eos_token_id")
    prompt = rows[0][:16]
    if 0 not in (ends if isinstance(ends, list) else [ends]):
        prompt = [one for one in prompt if one != 0]  # transformers took them for padding
    want = expected["greedy_24_from_first_16"][:max(0, reach - 16)]
    got = model.greedy(prompt, len(want))
    found["greedy"] = sum(a != b for a, b in zip(got, want))
    return reach, len(want), found


def compare_models(arguments, llama, scratch):
    good = True
    for folder in sorted((ROOT / "tests/data/models").iterdir()):
        if not (folder / "expected.json").exists():
            continue
        expected = json.loads((folder / "expected.json").read_text())
        path = scratch / f"{folder.name}.gguf"
        exported, said = export(arguments.worker, folder, path, arguments.dtype)
        if not exported:
            print(f"FAILED {folder.name}: {said}")
            good = False
            continue
        model = Model(llama, path)
        config = json.loads((folder / "config.json").read_text())
        reach, greedy, found = compare_model(model, config, expected)
        model.close()
        tolerance = TOLERANCE[arguments.dtype]
        if config["model_type"] == "gpt2":
            tolerance = max(tolerance, GELU_TOLERANCE)
        differs = found.pop("greedy")
        passed = max(found.values()) <= tolerance and (differs == 0 or arguments.dtype != "fp32")
        good = good and passed
        print("PASSED" if passed else "FAILED", f"{folder.name}: {reach} positions,",
              ", ".join(f"{name} {value:.1e}" for name, value in found.items()) +
              f", greedy {greedy - differs} of {greedy}")
        if (folder / "adapter").is_dir() and arguments.dtype == "fp32":
            good = compare_adapter(arguments, llama, scratch, folder, expected) and good
    return good


def compare_adapter(arguments, llama, scratch, folder, expected):
    checkpoint = scratch / f"{folder.name}-adapter"
    shutil.copytree(folder / "adapter", checkpoint)
    shutil.copy(folder / "config.json", checkpoint)
    (checkpoint / "base.json").write_text(json.dumps({"model": str(folder)}))
    path = scratch / f"{folder.name}-adapter.gguf"
    exported, said = export(arguments.worker, checkpoint, path, "fp32")
    if not exported:
        print(f"FAILED {folder.name}/adapter: {said}")
        return False
    model = Model(llama, path)
    worst = error(model.logits(expected["input_ids"][0])[-1],
                  expected["lora_logits_first_row_last_pos"])
    model.close()
    print("PASSED" if worst <= 1e-4 else "FAILED", f"{folder.name}/adapter: last logits {worst:.1e}")
    return worst <= 1e-4


def zero_model(folder, vocab_size):
    """A model of zeros, whose tokenizer is what counts."""
    folder.mkdir()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
              "vocab_size": vocab_size, "intermediate_size": 32, "num_hidden_layers": 1,
              "num_attention_heads": 1, "num_key_value_heads": 1, "tie_word_embeddings": True,
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5}
    shapes = {"model.embed_tokens.weight": [vocab_size, 32], "model.norm.weight": [32]}
    for name in ("q", "k", "v", "o"):
        shapes[f"model.layers.0.self_attn.{name}_proj.weight"] = [32, 32]
    for name in ("gate", "up", "down"):
        shapes[f"model.layers.0.mlp.{name}_proj.weight"] = [32, 32]
    for name in ("input", "post_attention"):
        shapes[f"model.layers.0.{name}_layernorm.weight"] = [32]
    header, at = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape) * 4
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    (folder / "config.json").write_text(json.dumps(config))


def patched(name):
    folder = ROOT / "tests/data/tokenizers" / name
    if (folder / "tokenizer.json").exists():
        return json.loads((folder / "tokenizer.json").read_text())
    patch = json.loads((folder / "patch.json").read_text())

    def merge(target, change):
        if not isinstance(change, dict):
            return change
        target = dict(target) if isinstance(target, dict) else {}
        for key, value in change.items():
            if value is None:
                target.pop(key, None)
            else:
                target[key] = merge(target.get(key), value)
        return target
    return merge(patched(patch["of"]), patch["patch"])


def compare_tokenizer(arguments, llama, scratch, name, files, cases):
    folder = scratch / f"tokenizer-{name}"
    zero_model(folder, 1024)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    path = scratch / f"tokenizer-{name}.gguf"
    exported, said = export(arguments.worker, folder, path, "fp32")
    if not exported:
        print(f"refused {name}: {said[said.find('('):].split(';')[0]}")
        return True
    model = Model(llama, path)
    wrong = [one["text"] for one in cases if model.tokenize(one["text"]) != one["ids"]]
    model.close()
    noted = [text for text in wrong if NOTED.get(name, lambda text: False)(text)]
    passed = wrong == noted
    print("PASSED" if passed else "FAILED", f"{name}: {len(cases) - len(wrong)} of {len(cases)} texts",
          f"({len(noted)} are known to differ)" if noted else "")
    for text in wrong if not passed else []:
        print(" ", repr(text))
    return passed


def compare_tokenizers(arguments, llama, scratch):
    good = True
    for folder in sorted((ROOT / "tests/data/tokenizers").iterdir()):
        if not folder.is_dir():
            continue
        cases = json.loads((folder / "cases.json").read_text())
        files = {"tokenizer.json": json.dumps(patched(folder.name)).encode()}
        good = compare_tokenizer(arguments, llama, scratch, folder.name, files, cases) and good
    folder = ROOT / "tests/data/sentencepiece"
    files = {"tokenizer.model": (folder / "tokenizer.model").read_bytes(),
             "tokenizer_config.json": b'{"add_bos_token": false}'}
    cases = json.loads((folder / "cases.json").read_text())
    return compare_tokenizer(arguments, llama, scratch, "sentencepiece", files, cases) and good


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--dtype", default="fp32", choices=TOLERANCE)
    parser.add_argument("--worker", default=str(ROOT / "build/bin/espalier-worker"))
    arguments = parser.parse_args()
    llama = Llama(arguments.llama)
    with tempfile.TemporaryDirectory() as scratch:
        models = compare_models(arguments, llama, pathlib.Path(scratch))
        tokenizers = compare_tokenizers(arguments, llama, pathlib.Path(scratch))
    return 0 if models and tokenizers else 1


if __name__ == "__main__":
    sys.exit(main())
