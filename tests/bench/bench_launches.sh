#!/usr/bin/env bash
# How many operators of LibTorch a layer of 17m takes forward and backward on MPS, whose launches cost
# where kernels are short: ours on the pretended Mac of tests/worker/mac, PyTorch's eager. Counted are
# those that compute. One JSON line a figure. No arguments.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR
source "$here/peers.sh"
"$ESPALIER_BENCH/../tests/worker_mac_tests" --gtest_filter='LaunchesOnAMac.*' | grep '^{'
for precision in fp32 bf16; do
  peer_here pytorch_launches.py eager "" --precision "$precision"
  if [ -n "${ESPALIER_DEBIAN13_ROOT:-}" ]; then
    peer_in_debian13 pytorch_launches.py eager "" --precision "$precision"
  fi
done
