#!/usr/bin/env bash
# The training step on an NVIDIA GPU beside PyTorch, eager and with torch.compile, in bf16 and in the
# same run (rounds alternate). One JSON line a figure; the last ones are the ratios. Needs an
# Espalier built with a CUDA LibTorch, and a python3 with the same PyTorch.
# Arguments: [SHAPE [BATCH [TIME [ROUNDS]]]]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
shape="${1:-1b}" batch="${2:-16}" time="${3:-2048}" rounds="${4:-3}"
python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  { echo "bench_h200.sh needs a python3 whose PyTorch sees a CUDA device" >&2; exit 1; }
what=(--device cuda --precision bf16 --shape "$shape" --batch "$batch" --time "$time" --steps 10)
lines="$(mktemp)"
trap 'rm -f "$lines"' EXIT
for ((round = 0; round < rounds; ++round)); do
  "$ESPALIER_BENCH/step_bench" "${what[@]}"
  python3 "$here/peers/pytorch_step.py" "${what[@]}" --label eager
  python3 "$here/peers/pytorch_step.py" "${what[@]}" --label compile --compile
done | tee "$lines"
python3 - "$lines" <<'END'
import collections, json, statistics, sys
rates, peaks = collections.defaultdict(list), {}
for line in open(sys.argv[1]):
    figure = json.loads(line)
    name = "espalier" if figure["who"] == "espalier" else figure["setting"]
    rates[name].append(figure["tokens_per_second"]["median"])
    peaks[name] = figure["peak_bytes"]
median = {name: statistics.median(values) for name, values in rates.items()}
for peer in "eager", "compile":
    print(json.dumps({"bench": "h200", "figure": f"espalier against pytorch, {peer}",
                      "tokens_per_second_ratio": round(median["espalier"] / median[peer], 3),
                      "peak_memory_ratio": round(peaks["espalier"] / peaks[peer], 3)}))
END
