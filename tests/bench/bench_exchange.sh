#!/usr/bin/env bash
# GB/s of an all-reduce between two "machines" (network namespaces joined by a veth cable), for one
# and four TCP links, beside MPI_Allreduce and iperf3 in the same run; and the bytes that each
# connection carried. One JSON line a figure. Needs root. Arguments: [RATE...], for instance
# "1gbit 5gbit none" (the default).
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "bench_exchange.sh needs root for network namespaces" >&2; exit 1; }
rates=("${@:-1gbit}")
[ $# -gt 0 ] || rates=(1gbit 5gbit none)
left="espalier-bx-$$-a" right="espalier-bx-$$-b" cable="ebx$$"
probe="$ESPALIER_BENCH/exchange_probe"
agent="$(mktemp)"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

clean_up() { ip netns del "$left" || true; ip netns del "$right" || true; rm -f "$agent"; }
trap clean_up EXIT
ip netns add "$left"
ip netns add "$right"
ip link add "${cable:0:13}a" netns "$left" type veth peer name "${cable:0:13}b" netns "$right"
ip -n "$left" addr add 10.79.0.1/24 dev "${cable:0:13}a"
ip -n "$right" addr add 10.79.0.2/24 dev "${cable:0:13}b"
ip -n "$left" link set lo up
ip -n "$right" link set lo up
ip -n "$left" link set "${cable:0:13}a" up
ip -n "$right" link set "${cable:0:13}b" up
# mpirun's remote shell: AGENT ADDRESS COMMAND...
cat > "$agent" <<END
#!/bin/bash
case "\$1" in 10.79.0.1) place="$left" ;; *) place="$right" ;; esac
shift
exec ip netns exec "\$place" bash -c "\$*"
END
chmod +x "$agent"

shape() {
  local place device
  for place in "$left ${cable:0:13}a" "$right ${cable:0:13}b"; do
    device="${place#* }"
    ip netns exec "${place% *}" tc qdisc del dev "$device" root 2>/dev/null || true
    [ "$1" = none ] ||
      ip netns exec "${place% *}" tc qdisc add dev "$device" root tbf rate "$1" burst 1mb latency 50ms
  done
}

line_rate() {
  ip netns exec "$left" iperf3 -s -1 > /dev/null &
  sleep 1
  ip netns exec "$right" iperf3 -c 10.79.0.1 --bidir -t 3 -J | python3 -c '
import json, sys
end = json.load(sys.stdin)["end"]
ways = [end["sum_received"], end["sum_received_bidir_reverse"]]
rates = [way["bits_per_second"] / 8e9 for way in ways]
print(json.dumps({"bench": "exchange", "rate": sys.argv[1], "who": "iperf3, each way at once",
                  "gigabytes_per_second": min(rates)}))' "$1"
  wait
}

# measure RATE LINKS ALGORITHM: mpirun's parameters are those that a launched job gets.
measure() {
  local striping=()
  [ "$2" = 1 ] || striping=(--mca pml_ob1_use_all_rdma 1 --mca pml_ob1_max_rdma_per_request 1)
  [ "$3" = espalier ] || striping=()
  ip netns exec "$left" timeout 300 mpirun --mca plm_rsh_agent "$agent" --bind-to none \
    --host 10.79.0.1,10.79.0.2 -np 2 --mca oob_tcp_if_include 10.79.0.0/24 \
    --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include 10.79.0.0/24 \
    --mca btl_tcp_sndbuf 4194304 --mca btl_tcp_rcvbuf 4194304 --mca btl_tcp_links "$2" \
    ${striping[@]+"${striping[@]}"} "$probe" --networks 10.79.0.0/24 --links "$2" \
    --algorithm "$3" 2>/dev/null | sed "s/^{/{\"bench\":\"exchange\",\"rate\":\"$1\",/"
}

for rate in "${rates[@]}"; do
  shape "$rate"
  line_rate "$rate"
  for links in 1 4; do
    for who in espalier mpi_allreduce; do measure "$rate" "$links" "$who"; done
  done
done
