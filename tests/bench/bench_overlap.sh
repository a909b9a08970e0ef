#!/usr/bin/env bash
# How much of the exchange is hidden behind the backward pass: its time alone, after the pass,
# against the wait that is left when buckets start during the pass; steps of both kinds alternate.
# Two ranks of one thread, in two namespaces. One JSON line a wire. Needs root.
# Ids are as frequent as words of a text, since only rows of the embedding that are used travel.
# Arguments: [RATE [SHAPE [GLOBAL_BATCH [VOCABULARY]]]]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=tests/bench/two_hosts.sh
. "$here/two_hosts.sh"
rate="${1:-1gbit}"
shape "$rate"
line_rate overlap "$rate"
for wire in fp32 bf16 int8; do
  on_two_hosts --mca btl_tcp_links 4 --mca pml_ob1_use_all_rdma 1 \
    --mca pml_ob1_max_rdma_per_request 1 -x OMP_NUM_THREADS=1 \
    "$ESPALIER_BENCH/ddp_probe" --bench overlap --networks 10.79.0.0/24 --shape "${2:-17m}" \
    --global-batch "${3:-8}" --vocab "${4:-0}" --wire "$wire"
done
