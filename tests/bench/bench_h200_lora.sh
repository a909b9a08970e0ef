#!/usr/bin/env bash
# Fine-tuning and serving the shape of Llama 3.2 3B on an NVIDIA GPU, with random weights.
#   step    a step of LoRA (rank 16, all projections) beside transformers and PEFT at their best, in
#           the same run (rounds alternate): layers compiled, with and without checkpointing
#   decode  one and sixteen sequences, as a share of what the memory's rate allows
#   folder  a Hugging Face folder made here is trained on by configs/jobs/lora-llama-3.2-3b.yaml,
#           its adapters exported, alone and merged, and read back by PEFT and transformers
# One JSON line a figure; the last ones of a step compare. Needs an Espalier built with a CUDA
# LibTorch, and a python3 with the same PyTorch, transformers and PEFT.
# Arguments: [step [BATCH [ROUNDS]] | decode | folder [DIRECTORY]]; without any, all of README.md.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ $# = 0 ]; then
  "$0" step 8
  "$0" step 1
  "$0" decode
  exec "$0" folder
fi
python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  { echo "bench_h200_lora.sh needs a python3 whose PyTorch sees a CUDA device" >&2; exit 1; }

step() {
  local batch="${1:-8}" rounds="${2:-3}" round lines
  local ours=(--shape 3b --device cuda --precision bf16 --batch "$batch" --time 2048 --steps 10)
  local peer=(--batch "$batch" --time 2048 --steps 10 --compile-layers)
  lines="$(mktemp)"
  for ((round = 0; round < rounds; ++round)); do
    "$ESPALIER_BENCH/step_bench" "${ours[@]}"
    python3 "$here/peers/pytorch_lora.py" "${peer[@]}" --label "layers compiled"
    "$ESPALIER_BENCH/step_bench" "${ours[@]}" --recompute all
    python3 "$here/peers/pytorch_lora.py" "${peer[@]}" --label "layers compiled, checkpointed" \
      --checkpoint
  done | tee "$lines"
  python3 "$here/compare.py" h200_lora "$lines"
  rm -f "$lines"
}

decode() {
  "$ESPALIER_BENCH/generation_bench" --shape 3b --device cuda --precision bf16 --prompt 512 \
    --tokens 256 --rows 1 --rows 4 --rows 16
}

folder() {
  local at="${1:-}" worker="$ESPALIER_BIN/espalier-worker" adapter
  at="${at:-$(mktemp -d)}"
  python3 "$here/peers/hugging_face_folder.py" make "$at/model"
  python3 "$here/peers/hugging_face_folder.py" pairs "$at/pairs.jsonl"
  "$worker" data prepare --output "$at/data" --tokenizer "$at/model" --format prompt-completion \
    "$at/pairs.jsonl"
  "$worker" --standalone "$here/../../configs/jobs/lora-llama-3.2-3b.yaml" --device cuda \
    --set "model.from=$at/model" --set "data.path=$at/data" --set train.epochs=1 \
    --set checkpoint.every_steps=4 --set "checkpoint.directory=$at/checkpoints"
  "$worker" export --checkpoint "$at/checkpoints" --output "$at/adapter"
  "$worker" export --checkpoint "$at/checkpoints" --output "$at/merged" --merge --dtype fp32
  "$ESPALIER_BENCH/logits_probe" "$at/model" "$at/logits" --adapter "$at/adapter"
  python3 "$here/peers/hugging_face_folder.py" check "$at/model" "$at/adapter" "$at/merged" \
    "$at/logits"
}

"$@"
