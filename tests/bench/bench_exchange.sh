#!/usr/bin/env bash
# GB/s of an all-reduce of 256 MiB between two "machines" (network namespaces joined by a veth
# cable): fp32 over one and four TCP links, the narrow wires over four, beside MPI_Allreduce and
# iperf3 in the same run; reduce-scatter, all-gather and broadcast beside what MPI has; and the bytes
# that each connection carried. One JSON line a figure. Needs root. Arguments: [RATE...], for instance "1gbit 5gbit none" (the default).
# With ESPALIER_SWEEP=1: chunk sizes and depths instead of the peers.
set -euo pipefail
# shellcheck source=tests/bench/two_hosts.sh
. "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/two_hosts.sh"
[ $# -gt 0 ] || set -- 1gbit 5gbit none
probe="$ESPALIER_BENCH/exchange_probe"

# measure RATE LINKS ALGORITHM [PROBE_ARGUMENT...]
measure() {
  local rate="$1" links="$2" who="$3" striping=()
  shift 3
  [ "$links" = 1 ] || [ "$who" != espalier ] ||
    striping=(--mca pml_ob1_use_all_rdma 1 --mca pml_ob1_max_rdma_per_request 1)
  on_two_hosts --mca btl_tcp_links "$links" ${striping[@]+"${striping[@]}"} \
    "$probe" --networks 10.79.0.0/24 --links "$links" --algorithm "$who" \
    --bytes "${ESPALIER_BYTES:-268435456}" --repeats "${ESPALIER_REPEATS:-5}" "$@" 2>/dev/null |
    sed "s/^{/{\"bench\":\"exchange\",\"rate\":\"$rate\",/"
}

for rate in "$@"; do
  shape "$rate"
  line_rate exchange "$rate"
  if [ "${ESPALIER_SWEEP:-0}" = 1 ]; then
    for chunk in 131072 262144 524288 1048576 4194304; do
      for depth in 4 16 32; do
        measure "$rate" 4 espalier --chunk-bytes "$chunk" --depth "$depth"
      done
    done
    continue
  fi
  for links in 1 4; do
    for who in espalier mpi; do measure "$rate" "$links" "$who"; done
  done
  for operation in reduce_scatter all_gather broadcast; do
    for who in espalier mpi; do measure "$rate" 4 "$who" --operation "$operation"; done
  done
  for wire in bf16 int8; do measure "$rate" 4 espalier --wire "$wire"; done
done
