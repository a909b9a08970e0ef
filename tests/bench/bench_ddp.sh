#!/usr/bin/env bash
# Two ranks of Espalier beside PyTorch's DistributedDataParallel over Gloo: same shapes, one thread
# a rank, two "machines" (network namespaces), rounds alternate. One JSON line a figure; the last ones
# compare the best settings, and fp32 with fp32. Needs root and a python3 with torch (Debian:
# python3-torch). Arguments: [RATE [SHAPE [GLOBAL_BATCH [ROUNDS]]]]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python=/usr/bin/python3
"$python" -c 'import torch' 2>/dev/null || python=python3
if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "the peer needs PyTorch for Python: installing Debian's python3-torch" >&2
  apt-get install -y --no-install-recommends python3-torch >&2
  python=/usr/bin/python3
fi
# shellcheck source=tests/bench/two_hosts.sh
. "$here/two_hosts.sh"
rate="${1:-1gbit}" shape="${2:-17m}" batch="${3:-8}" rounds="${4:-3}"
export OMP_NUM_THREADS=1
shape "$rate"
line_rate ddp "$rate"

espalier() {
  on_two_hosts --mca btl_tcp_links 4 --mca pml_ob1_use_all_rdma 1 \
    --mca pml_ob1_max_rdma_per_request 1 -x OMP_NUM_THREADS \
    "$ESPALIER_BENCH/ddp_probe" --networks 10.79.0.0/24 --shape "$shape" \
    --global-batch "$batch" --precision "$1" --wire "$2"
}

# peer LABEL ARGUMENT...
peer() {
  local label="$1" rank place pids=()
  shift
  for rank in 1 0; do
    place="$left" device="$left_end"
    [ "$rank" = 0 ] || place="$right" device="$right_end"
    ip netns exec "$place" env MASTER_ADDR=10.79.0.1 MASTER_PORT=29500 RANK="$rank" WORLD_SIZE=2 \
      GLOO_SOCKET_IFNAME="$device" timeout 300 "$python" "$here/peers/pytorch_ddp.py" \
      --shape "$shape" --global-batch "$batch" --label "$label" "$@" 2>/dev/null &
    pids+=($!)
  done
  wait "${pids[@]}"
}

lines="$scratch/lines"
for ((round = 0; round < rounds; ++round)); do
  espalier fp32 fp32
  for wire in fp32 bf16 int8; do espalier bf16 "$wire"; done
  OPENBLAS_CORETYPE=SkylakeX peer "fp32, gradients as fp32"
  OPENBLAS_CORETYPE=SkylakeX peer "bf16, gradients as fp32" --precision bf16
  OPENBLAS_CORETYPE=SkylakeX peer "bf16, gradients as fp16" --precision bf16 --fp16-hook
done | tee "$lines"
"$python" - "$lines" <<'END'
import collections, json, statistics, sys
rates = collections.defaultdict(list)
for line in open(sys.argv[1]):
    figure = json.loads(line)
    rates[figure["who"], figure["setting"]].append(figure["tokens_per_second"]["median"])
median = {name: statistics.median(values) for name, values in rates.items()}
for title, setting in ("best of each", None), ("same setting", "fp32, gradients as fp32"):
    ours, best = (max((name for name in median
                       if (name[0] == "espalier") == mine and setting in (None, name[1])),
                      key=median.get) for mine in (True, False))
    print(json.dumps({"bench": "ddp", "figure": f"espalier against ddp, {title}", "ours": ours[1],
                      "peer": best[1],
                      "tokens_per_second_ratio": round(median[ours] / median[best], 3)}))
END
