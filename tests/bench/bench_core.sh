#!/usr/bin/env bash
# Microseconds that one event costs the coordinator's core, with a job on every node and as many in
# the queue. One JSON line a size of the cluster. Arguments: those of core_bench.
set -euo pipefail
exec "$ESPALIER_BENCH/core_bench" "$@"
