# Two "machines" for benchmarks: network namespaces joined by a veth cable. Sourced; needs root.
# Gives: $left, $right (namespaces, 10.79.0.1 and 10.79.0.2), shape RATE, line_rate BENCH RATE,
# on_two_hosts MPIRUN_ARGUMENT... (one rank on each). Everything is removed when the script ends.
[ "$(id -u)" = 0 ] || { echo "$0 needs root for network namespaces" >&2; exit 1; }
left="espalier-bench-$$-a" right="espalier-bench-$$-b" cable="ebx$$"
left_end="${cable:0:13}a" right_end="${cable:0:13}b"
scratch="$(mktemp -d)"
agent="$scratch/agent"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

two_hosts_end() { ip netns del "$left" || true; ip netns del "$right" || true; rm -rf "$scratch"; }
trap two_hosts_end EXIT
ip netns add "$left"
ip netns add "$right"
ip link add "$left_end" netns "$left" type veth peer name "$right_end" netns "$right"
ip -n "$left" addr add 10.79.0.1/24 dev "$left_end"
ip -n "$right" addr add 10.79.0.2/24 dev "$right_end"
for place in "$left $left_end" "$right $right_end"; do
  ip -n "${place% *}" link set lo up
  ip -n "${place% *}" link set "${place#* }" up
done
# mpirun's remote shell: AGENT ADDRESS COMMAND...
cat > "$agent" <<END
#!/bin/bash
case "\$1" in 10.79.0.1) place="$left" ;; *) place="$right" ;; esac
shift
exec ip netns exec "\$place" bash -c "\$*"
END
chmod +x "$agent"

# shape RATE: of both directions, as tc spells it; none: as fast as the machine goes.
shape() {
  local place
  for place in "$left $left_end" "$right $right_end"; do
    ip netns exec "${place% *}" tc qdisc del dev "${place#* }" root 2>/dev/null || true
    [ "$1" = none ] || ip netns exec "${place% *}" \
      tc qdisc add dev "${place#* }" root tbf rate "$1" burst 1mb latency 50ms
  done
}

# line_rate BENCH RATE: what iperf3 gets, both ways at once.
line_rate() {
  ip netns exec "$left" iperf3 -s -1 > /dev/null &
  sleep 1
  ip netns exec "$right" iperf3 -c 10.79.0.1 --bidir -t 3 -J | python3 -c '
import json, sys
report = json.load(sys.stdin)
ways = [report["end"]["sum_received"], report["end"]["sum_received_bidir_reverse"]]
rates = [way["bits_per_second"] / 8e9 for way in ways]
print(json.dumps({"bench": sys.argv[1], "rate": sys.argv[2], "who": "iperf3, each way at once",
                  "gigabytes_per_second": min(rates), "version": report["start"]["version"]}))' \
    "$1" "$2"
  wait $!
}

# on_two_hosts MPIRUN_ARGUMENT...: the fabric is as for a launched job.
on_two_hosts() {
  ip netns exec "$left" timeout 300 mpirun --mca plm_rsh_agent "$agent" --bind-to none \
    --host 10.79.0.1,10.79.0.2 -np 2 --mca oob_tcp_if_include 10.79.0.0/24 \
    --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include 10.79.0.0/24 \
    --mca btl_tcp_sndbuf 4194304 --mca btl_tcp_rcvbuf 4194304 "$@"
}
