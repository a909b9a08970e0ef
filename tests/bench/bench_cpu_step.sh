#!/usr/bin/env bash
# Tokens per second and peak memory of one training step on the CPU, beside PyTorch's in the same
# run (rounds alternate, so that both see the same machine). One JSON line a figure; the last ones
# compare the best setting of each, and the best of fp32. Needs a python3 with torch (Debian: python3-torch). Arguments: [SHAPE [BATCH [ROUNDS]]]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
shape="${1:-17m}" batch="${2:-8}" rounds="${3:-3}"
python=/usr/bin/python3
"$python" -c 'import torch' 2>/dev/null || python=python3
"$python" -c 'import torch' 2>/dev/null ||
  { echo "the peer needs PyTorch for Python (apt install python3-torch)" >&2; exit 1; }
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
peer=("$python" "$here/peers/pytorch_step.py" --shape "$shape" --batch "$batch" --steps 3
      --threads "$OMP_NUM_THREADS")
lines="$(mktemp)"
trap 'rm -f "$lines"' EXIT
for ((round = 0; round < rounds; ++round)); do
  for precision in fp32 bf16; do
    "$ESPALIER_BENCH/step_bench" --shape "$shape" --batch "$batch" --threads "$OMP_NUM_THREADS" \
      --precision "$precision"
  done
  "${peer[@]}" --label "as installed"
  OPENBLAS_CORETYPE=SkylakeX "${peer[@]}" --label "OPENBLAS_CORETYPE=SkylakeX"
  OPENBLAS_CORETYPE=SkylakeX "${peer[@]}" --label "bf16, SkylakeX" --precision bf16
done | tee "$lines"
"$python" - "$lines" <<'END'
import collections, json, statistics, sys
rates, peaks = collections.defaultdict(list), collections.defaultdict(list)
for line in open(sys.argv[1]):
    figure = json.loads(line)
    name = (figure["who"], figure["precision"], figure["setting"])
    rates[name].append(figure["tokens_per_second"]["median"])
    peaks[name].append(figure["peak_bytes"])
median = {name: statistics.median(values) for name, values in rates.items()}
for title, precisions in ("best", ["fp32", "bf16"]), ("fp32", ["fp32"]):
    ours, best = (max((name for name in median if name[0] == who and name[1] in precisions),
                      key=median.get) for who in ("espalier", "pytorch"))
    print(json.dumps({
        "bench": "train_step", "figure": f"espalier against pytorch, {title}",
        "ours": ours[1], "peer": best[2],
        "tokens_per_second_ratio": round(median[ours] / median[best], 3),
        "peak_memory_ratio": round(statistics.median(peaks[ours]) /
                                   statistics.median(peaks[best]), 3)}))
END
