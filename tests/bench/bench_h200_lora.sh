#!/usr/bin/env bash
# Fine-tuning and serving the shape of Llama 3.2 3B on an NVIDIA GPU, with random weights.
#   step       a step of LoRA (rank 16, all projections) beside transformers and PEFT at their best
#              (layers compiled), in the same run: rounds alternate
#   recompute  the same, both computing layers again in the backward pass
#   decode     one and sixteen sequences, as a share of what the memory's rate allows
#   folder     a Hugging Face folder made here is trained on by configs/jobs/lora-llama-3.2-3b.yaml,
#              its adapters exported, alone and merged, and read back by PEFT and transformers. What
#              is in DIRECTORY already is not made again, so one that was stopped can be called again
# One JSON line a figure; the last ones of a step compare. Needs an Espalier built with a CUDA
# LibTorch, and a python3 with the same PyTorch, transformers and PEFT.
# Arguments: [step|recompute [BATCH [ROUNDS]] | decode | folder [DIRECTORY]]; without any, all of
# README.md.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ $# = 0 ]; then
  "$0" step 8
  "$0" step 1
  "$0" recompute 1
  "$0" decode
  exec "$0" folder
fi
python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  { echo "bench_h200_lora.sh needs a python3 whose PyTorch sees a CUDA device" >&2; exit 1; }

# rounds BATCH ROUNDS OURS LABEL [PEER]: OURS and PEER are options of the two sides.
rounds() {
  local batch="$1" count="$2" ours="$3" label="$4" peer="${5:-}" round lines
  lines="$(mktemp)"
  for ((round = 0; round < count; ++round)); do
    # shellcheck disable=SC2086
    "$ESPALIER_BENCH/step_bench" --shape 3b --device cuda --precision bf16 --batch "$batch" \
      --time 2048 --steps 10 $ours
    # shellcheck disable=SC2086
    python3 "$here/peers/pytorch_lora.py" --batch "$batch" --time 2048 --steps 10 \
      --compile-layers --label "$label" $peer
  done | tee "$lines"
  python3 "$here/compare.py" h200_lora "$lines"
  rm -f "$lines"
}

step() { rounds "${1:-8}" "${2:-3}" "" "layers compiled"; }

recompute() {
  rounds "${1:-8}" "${2:-3}" "--recompute all" "layers compiled, checkpointed" --checkpoint
}

decode() {
  "$ESPALIER_BENCH/generation_bench" --shape 3b --device cuda --precision bf16 --prompt 512 \
    --tokens 256 --rounds 5 --rows 1 --rows 16
}

# stage NAME COMMAND...: runs COMMAND unless that was done in this folder already; how long it took.
stage() {
  local name="$1" began="$SECONDS"
  shift
  [ ! -e "$at/$name.done" ] || return 0
  "$@"
  touch "$at/$name.done"
  echo "{\"bench\": \"lora_folder\", \"figure\": \"$name\", \"seconds\": $((SECONDS - began))}"
}

train() {
  rm -rf "$at/checkpoints"
  "$worker" --standalone "$here/../../configs/jobs/lora-llama-3.2-3b.yaml" --device cuda \
    --set "model.from=$at/model" --set "data.path=$at/data" --set train.epochs=1 \
    --set checkpoint.every_steps=4 --set "checkpoint.directory=$at/checkpoints"
}

# export_to FOLDER ARGUMENT...
export_to() {
  local to="$at/$1"
  shift
  rm -rf "$to"
  "$worker" export --checkpoint "$at/checkpoints" --output "$to" "$@"
}

prepare() {
  python3 "$here/peers/hugging_face_folder.py" pairs "$at/pairs.jsonl"
  rm -rf "$at/data"
  "$worker" data prepare --output "$at/data" --tokenizer "$at/model" --format prompt-completion \
    "$at/pairs.jsonl"
}

folder() {
  at="${1:-$(mktemp -d)}"
  worker="$ESPALIER_BIN/espalier-worker"
  mkdir -p "$at"
  stage make python3 "$here/peers/hugging_face_folder.py" make "$at/model"
  stage prepare prepare
  stage train train
  stage adapter export_to adapter
  stage merge export_to merged --merge --dtype fp32
  stage logits "$ESPALIER_BENCH/logits_probe" "$at/model" "$at/logits" --adapter "$at/adapter"
  python3 "$here/peers/hugging_face_folder.py" check "$at/model" "$at/adapter" "$at/merged" \
    "$at/logits"
}

"$@"
