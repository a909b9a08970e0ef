#!/usr/bin/env bash
# The rate of unequal ranks together as a part of the sum of their rates alone, even and planned, and
# milliseconds of a plan for up to 1,000 nodes. One JSON line a figure. Arguments: those of
# planner_bench.
set -euo pipefail
exec "$ESPALIER_BENCH/planner_bench" "$@"
