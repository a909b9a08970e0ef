#!/usr/bin/env bash
# Tokens per second and peak memory of a step of LoRA on the CPU (rank 16 on all projections of a
# model in the shape of SmolLM2-360M, 8,683,520 numbers), beside PyTorch's in the same run: rounds
# alternate, as in bench_cpu_step.sh, and so do the settings of the peer. One JSON line a figure; the
# last ones compare. In fp32 also with ten of the 32 layers computed again in the backward pass, for
# less memory. The limit is that of the step's products with a frozen base.
# Arguments: [BATCH [TIME [ROUNDS]]]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=tests/bench/peers.sh
. "$here/peers.sh"
batch="${1:-4}" time="${2:-256}" rounds="${3:-3}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
what=(--shape 360m --batch "$batch" --time "$time" --threads "$OMP_NUM_THREADS"
      --steps "${ESPALIER_BENCH_STEPS:-5}")

peers_by() {
  "$1" pytorch_step.py "fp32" "" "${what[@]}"
  "$1" pytorch_step.py "fp32, SkylakeX" OPENBLAS_CORETYPE=SkylakeX "${what[@]}"
  "$1" pytorch_step.py "autocast" OPENBLAS_CORETYPE=SkylakeX "${what[@]}" --precision bf16
  "$1" pytorch_step.py "bf16 base" OPENBLAS_CORETYPE=SkylakeX "${what[@]}" --precision bf16 \
    --weights bf16
}

lines="$(mktemp)"
trap 'rm -f "$lines"' EXIT
for ((round = 0; round < rounds; ++round)); do
  limit=()  # takes a minute, so once
  [ "$round" = 0 ] && limit=(--limit)
  for precision in fp32 bf16; do
    "$ESPALIER_BENCH/step_bench" "${what[@]}" --precision "$precision" ${limit[@]+"${limit[@]}"}
  done
  "$ESPALIER_BENCH/step_bench" "${what[@]}" --precision fp32 --recompute 0,3,6,9,12,15,18,21,24,27
  peers_by peer_here
  if [ -n "${ESPALIER_DEBIAN13_ROOT:-}" ]; then
    peers_by peer_in_debian13
    peer_in_debian13 pytorch_step.py "compiled" OPENBLAS_CORETYPE=SkylakeX "${what[@]}" \
      --compile default
    peer_in_debian13 pytorch_step.py "bf16 base, compiled" OPENBLAS_CORETYPE=SkylakeX \
      "${what[@]}" --precision bf16 --weights bf16 --compile default
  fi
done | tee "$lines"
"$python" "$here/compare.py" lora_cpu "$lines"
