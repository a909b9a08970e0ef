#!/usr/bin/env bash
# The training step of tiny recursive models, Sudoku's and that of conversations, beside the
# original form in PyTorch in the same run (rounds alternate): eager, and compiled where that
# PyTorch can. One JSON line a figure; the last ones of a shape compare. On cuda it needs an
# Espalier built with a CUDA LibTorch, and a python3 with the same PyTorch.
# Arguments: [DEVICE [ROUNDS]], cpu and 3 rounds without any.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
device="${1:-cpu}" rounds="${2:-3}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
case "$device" in
  cpu)
    # shellcheck source=tests/bench/peers.sh
    . "$here/peers.sh"
    precisions="fp32" settings=(8 4) steps=(5 5)
    ask() { peer_here pytorch_trm.py "$1" "" "${@:2}"; } ;;
  cuda)
    python=python3 precisions="bf16" settings=(768 32) steps=(20 100)  # 1.4 s of either shape
    ask() { "$python" "$here/peers/pytorch_trm.py" --label "$1" "${@:2}"; } ;;
  *) echo "bench_trm.sh knows cpu and cuda, not '$device'" >&2; exit 2 ;;
esac
can_compile() { "$python" -c 'import sys, torch; sys.exit(not hasattr(torch, "compile"))'; }

# measure SHAPE BATCH STEPS
measure() {
  local lines precision round
  lines="$(mktemp)"
  for ((round = 0; round < rounds; ++round)); do
    for precision in $precisions; do
      local what=(--device "$device" --shape "$1" --batch "$2" --steps "$3"
        --threads "$OMP_NUM_THREADS" --precision "$precision")
      "$ESPALIER_BENCH/trm_bench" "${what[@]}"
      ask "eager, $precision" "${what[@]}"
      if can_compile; then ask "compiled, $precision" "${what[@]}" --compile default; fi
    done
  done | tee "$lines"
  "$python" "$here/compare.py" trm "$lines"
  rm -f "$lines"
}

measure puzzle "${settings[0]}" "${steps[0]}"
measure chat "${settings[1]}" "${steps[1]}"
