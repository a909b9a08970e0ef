#!/usr/bin/env bash
# A step of GRPO on the shape of Llama 3.2 3B with random weights, on an NVIDIA GPU: eight
# completions of 128 tokens of a prompt of 350, adapters of rank 16 on all projections, and a
# reference, beside transformers and PEFT at their best in the same run: rounds alternate. The peer
# samples by generate(), and by a loop of its own over the compiled model.
#   step       nothing is computed twice
#   recompute  both compute layers again in the backward pass, as the roofline's formula has it
# One JSON line a figure; the last ones compare, with our share of the roofline (grpo_bench.cc).
# Needs an Espalier built with a CUDA LibTorch, and a python3 with the same PyTorch, transformers
# and PEFT.
# Arguments: [step|recompute [ROUNDS]]; without any, step and then recompute.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ $# = 0 ]; then
  "$0" step
  exec "$0" recompute
fi
python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  { echo "bench_h200_grpo.sh needs a python3 whose PyTorch sees a CUDA device" >&2; exit 1; }

ask() { python3 "$here/peers/pytorch_grpo.py" --compile-layers --merge "$@"; }

# rounds ROUNDS OURS LABEL PEER: OURS and PEER are options of the two sides.
rounds() {
  local count="$1" ours="$2" label="$3" peer="$4" round lines
  lines="$(mktemp)"
  for ((round = 0; round < count; ++round)); do
    # shellcheck disable=SC2086
    "$ESPALIER_BENCH/grpo_bench" --shape 3b --device cuda --precision bf16 $ours
    # shellcheck disable=SC2086
    ask --label "$label, generate()" $peer
    # shellcheck disable=SC2086
    ask --loop --label "$label, loop" $peer
  done | tee "$lines"
  python3 "$here/compare.py" h200_grpo "$lines"
  rm -f "$lines"
}

step() { rounds "${1:-3}" "" "compiled" ""; }
recompute() { rounds "${1:-3}" "--recompute all" "compiled, checkpointed" --checkpoint; }

"$@"
