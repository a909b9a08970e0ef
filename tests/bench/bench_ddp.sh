#!/usr/bin/env bash
# Two ranks of Espalier beside PyTorch's DistributedDataParallel over Gloo: same shapes, same tokens,
# one thread a rank, two "machines" (network namespaces), rounds alternate. One JSON line a figure;
# the last ones compare, fp32 with fp32 gradients first. Needs root and a python3 with torch
# (Debian: python3-torch). Arguments: [RATE [SHAPE [GLOBAL_BATCH [ROUNDS]]]]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=tests/bench/peers.sh
. "$here/peers.sh"
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
  local label="$1" rank place device pids=()
  shift
  for rank in 1 0; do
    place="$left" device="$left_end"
    [ "$rank" = 0 ] || place="$right" device="$right_end"
    peer_place=(ip netns exec "$place" timeout 300)
    peer_here pytorch_ddp.py "$label" "MASTER_ADDR=10.79.0.1 MASTER_PORT=29500 RANK=$rank
      WORLD_SIZE=2 GLOO_SOCKET_IFNAME=$device OPENBLAS_CORETYPE=SkylakeX" \
      --shape "$shape" --global-batch "$batch" "$@" 2> "$scratch/peer$rank" &
    pids+=($!)
  done
  wait "${pids[@]}" || { cat "$scratch"/peer* >&2; return 1; }
}

lines="$scratch/lines"
for ((round = 0; round < rounds; ++round)); do
  espalier fp32 fp32
  for wire in fp32 bf16 int8; do espalier bf16 "$wire"; done
  peer "gradients as fp32"
  peer "gradients as fp32" --precision bf16
  peer "gradients as fp16" --precision bf16 --fp16-hook
done | tee "$lines"
"$python" "$here/compare.py" ddp "$lines"
