#!/usr/bin/env bash
# Microseconds of judging a turn of Wordle with 12,920 words: the candidates, the information of a
# guess, a whole judgement. One JSON line a figure. Arguments: those of reward_bench.
set -euo pipefail
exec "$ESPALIER_BENCH/reward_bench" "$@"
