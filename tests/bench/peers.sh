# Runs the peers in PyTorch for Python, of this system and of a Debian 13 where ESPALIER_DEBIAN13_ROOT
# names its folder (debian13_root.sh makes one). Sourced. Both with jemalloc, which Espalier links,
# and with the OpenBLAS that shares PyTorch's OpenMP threads where it is installed: the one of
# pthreads runs its threads beside those, which gets in the way on machines with few cores.
peers="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/peers"
has_torch() { "$1" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))'; }
python=/usr/bin/python3
has_torch "$python" || python=python3
has_torch "$python" ||
  { echo "the peer needs PyTorch for Python (Debian: apt install python3-torch)" >&2; exit 1; }
# Debian's PyTorch also runs on reference BLAS, which says nothing about PyTorch.
"$python" - <<'PYTHON' || { echo "the peer needs a BLAS (apt install libopenblas0-openmp)" >&2; exit 1; }
import sys, torch
torch.ones(64, 64) @ torch.ones(64, 64)
sys.exit(sys.platform == "linux" and not torch.backends.mkl.is_available() and
         not any(name in open("/proc/self/maps").read() for name in ("openblas", "blis", "mkl")))
PYTHON

# Where peer_here runs its command, for instance (ip netns exec NAME).
peer_place=()

# peer_here SCRIPT LABEL "NAME=VALUE..." ARGUMENT...
peer_here() {
  local script="$1" label="$2" settings="$3" preload
  shift 3
  preload="$(ldconfig -p 2>/dev/null | awk '/libjemalloc.so.2/ && !found++ { print $NF }')"
  # shellcheck disable=SC2086
  ${peer_place[@]+"${peer_place[@]}"} env ${preload:+LD_PRELOAD="$preload"} LD_LIBRARY_PATH="$(echo /usr/lib/*/openblas-openmp)" \
    $settings "$python" "$peers/$script" --label "$label" "$@"
}

# peer_in_debian13 SCRIPT LABEL "NAME=VALUE..." ARGUMENT...: the mounts end with the command.
peer_in_debian13() {
  local script="$1" label="$2" settings="$3"
  shift 3
  # shellcheck disable=SC2016,SC2086
  unshare -m bash -c '
    mount -t proc proc "$0/proc" && mount --bind "$1" "$0/mnt" && shift && exec chroot "$0" "$@"' \
    "$ESPALIER_DEBIAN13_ROOT" "$peers" env -u LD_LIBRARY_PATH LD_PRELOAD=libjemalloc.so.2 \
    LD_LIBRARY_PATH="$(cd "$ESPALIER_DEBIAN13_ROOT" && echo /usr/lib/*-linux-gnu/openblas-openmp)" \
    $settings python3 "/mnt/$script" --label "Debian 13: $label" "$@"
}
