#!/usr/bin/env bash
# Tokens per second and peak memory of one training step on the CPU, beside PyTorch's in the same
# run (rounds alternate, so that both see the same machine), and our share of what the processor
# allows: the step's matrix products alone, each at the best rate of any way to compute it. One JSON
# line a figure; the last ones compare, fp32 with fp32 first, the peer in its best setting.
# With ESPALIER_DEBIAN13_ROOT also beside the PyTorch of a Debian 13 (see debian13_root.sh).
# Arguments: [SHAPE [BATCH [ROUNDS]]]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=tests/bench/peers.sh
. "$here/peers.sh"
shape="${1:-17m}" batch="${2:-8}" rounds="${3:-3}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
what=(--shape "$shape" --batch "$batch" --threads "$OMP_NUM_THREADS")

ours() { "$ESPALIER_BENCH/step_bench" "${what[@]}" "$@"; }

# Every setting that was the fastest of a version on some processor.
peers_by() {
  "$1" pytorch_step.py "fp32" "" "${what[@]}"
  "$1" pytorch_step.py "fp32, SkylakeX" OPENBLAS_CORETYPE=SkylakeX "${what[@]}"
  "$1" pytorch_step.py "autocast" OPENBLAS_CORETYPE=SkylakeX "${what[@]}" --precision bf16
  "$1" pytorch_step.py "bf16 weights" OPENBLAS_CORETYPE=SkylakeX "${what[@]}" \
    --precision bf16 --weights bf16
}

lines="$(mktemp)"
trap 'rm -f "$lines"' EXIT
for ((round = 0; round < rounds; ++round)); do
  limit=()  # takes a minute, so once
  [ "$round" = 0 ] && limit=(--limit)
  for precision in fp32 bf16; do
    ours --precision "$precision" ${limit[@]+"${limit[@]}"}
    ours --precision "$precision" --moments int8 --recompute all
  done
  peers_by peer_here
  if [ -n "${ESPALIER_DEBIAN13_ROOT:-}" ]; then
    peers_by peer_in_debian13
    peer_in_debian13 pytorch_step.py "compiled" OPENBLAS_CORETYPE=SkylakeX "${what[@]}" \
      --compile default
    peer_in_debian13 pytorch_step.py "bf16 weights, compiled" OPENBLAS_CORETYPE=SkylakeX \
      "${what[@]}" --precision bf16 --weights bf16 --compile default
  fi
done | tee "$lines"
"$python" "$here/compare.py" cpu_step "$lines"
