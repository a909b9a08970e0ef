#!/usr/bin/env bash
# Tokens per second and peak memory of one training step on the CPU, beside PyTorch's in the same
# run (rounds alternate, so that both see the same machine). One JSON line a figure; the last ones
# compare the best setting of each, the best of fp32, and the best of PyTorch with our steps of least
# memory (moments of 8 bits, every layer recomputed). Needs a python3 with torch (Debian: python3-torch). Arguments: [SHAPE [BATCH [ROUNDS]]]
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
    "$ESPALIER_BENCH/step_bench" --shape "$shape" --batch "$batch" --threads "$OMP_NUM_THREADS" \
      --precision "$precision" --moments int8 --recompute all
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
def best(who, precisions, lean=False):
    return max((name for name in median if name[0] == who and name[1] in precisions
                and name[2].startswith("int8") == lean), key=median.get)
every = ["fp32", "bf16"]
for title, ours, peer in (
        ("best", best("espalier", every), best("pytorch", every)),
        ("fp32", best("espalier", ["fp32"]), best("pytorch", ["fp32"])),
        ("least memory, bf16", best("espalier", ["bf16"], True), best("pytorch", every)),
        ("least memory, fp32", best("espalier", ["fp32"], True), best("pytorch", ["fp32"]))):
    print(json.dumps({
        "bench": "train_step", "figure": f"espalier against pytorch, {title}",
        "ours": f"{ours[1]}, {ours[2]}", "peer": peer[2],
        "tokens_per_second_ratio": round(median[ours] / median[peer], 3),
        "peak_memory_ratio": round(statistics.median(peaks[ours]) /
                                   statistics.median(peaks[peer]), 3)}))
END
