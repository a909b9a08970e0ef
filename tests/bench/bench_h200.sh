#!/usr/bin/env bash
# The training step on an NVIDIA GPU beside PyTorch at its best, in bf16 and in the same run (rounds
# alternate): eager and with torch.compile, weights in fp32 under autocast and in bf16 beside fp32
# copies. One JSON line a figure; the last ones of a shape compare. Needs an Espalier built with a
# CUDA LibTorch, and a python3 with the same PyTorch.
# Arguments: [SHAPE BATCH TIME [ROUNDS]]; without any, those of README.md.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ $# = 0 ]; then
  "$0" 1b 16 2048
  "$0" 124m 32 1024
  exec "$0" 17m 8 256
fi
shape="$1" batch="$2" time="$3" rounds="${4:-3}"
python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  { echo "bench_h200.sh needs a python3 whose PyTorch sees a CUDA device" >&2; exit 1; }
what=(--device cuda --precision bf16 --shape "$shape" --batch "$batch" --time "$time" --steps 10)

# peer LABEL ARGUMENT...
peer() {
  local label="$1"
  shift
  python3 "$here/peers/pytorch_step.py" "${what[@]}" --label "$label" "$@"
}

# Recorded graphs pay where the kernels are short.
mode=default
[ "$shape" = 1b ] || mode=reduce-overhead
lines="$(mktemp)"
trap 'rm -f "$lines"' EXIT
for ((round = 0; round < rounds; ++round)); do
  "$ESPALIER_BENCH/step_bench" "${what[@]}"
  for weights in fp32 bf16; do
    peer "eager, $weights weights" --weights "$weights"
    peer "compiled ($mode), $weights weights" --weights "$weights" --compile "$mode"
  done
done | tee "$lines"
python3 "$here/compare.py" h200 "$lines"
