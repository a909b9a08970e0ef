#!/usr/bin/env bash
# debian13_root.sh DIR: makes a Debian 13 in the folder DIR with PyTorch 2.6 for Python, OpenBLAS,
# jemalloc and the compiler that torch.compile needs. With ESPALIER_DEBIAN13_ROOT=DIR the CPU
# benchmarks run that PyTorch too, by chroot. Takes 2.5 GB and some minutes; needs root and
# debootstrap.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "debian13_root.sh needs root" >&2; exit 1; }
command -v debootstrap > /dev/null ||
  { echo "debian13_root.sh needs debootstrap (apt install debootstrap)" >&2; exit 1; }
[ -e "$1/etc/debian_version" ] ||
  debootstrap --variant=minbase trixie "$1" "${ESPALIER_DEBIAN_MIRROR:-http://deb.debian.org/debian}"
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
chroot "$1" apt-get update -q
chroot "$1" apt-get install -y -q --no-install-recommends python3-torch python3-numpy python3-dev \
  libopenblas0-openmp libjemalloc2 g++ libtorch-dev python3-setuptools
chroot "$1" python3 -c 'import torch; print("PyTorch", torch.__version__)'
