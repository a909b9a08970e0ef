#!/usr/bin/env bash
# The memory governor under a control group's limit (version 1): what it predicts for its passes
# against what they take, and the size it finds against the largest that survives there, found by
# bisection. One JSON line a figure. Needs root. Arguments: [LIMIT_MB [PER_SEQUENCE_TOKENS]]
set -euo pipefail
limit_mb="${1:-1000}" tokens="${2:-256}"
worker="$(realpath "$ESPALIER_BIN/espalier-worker")"
root=/sys/fs/cgroup/memory
[ "$(id -u)" = 0 ] || { echo "bench_governor.sh needs root for control groups" >&2; exit 1; }
[ -e "$root/memory.limit_in_bytes" ] ||
  { echo "bench_governor.sh needs control groups of version 1 in $root" >&2; exit 1; }
group="$root/espalier-bench-$$" folder="$(mktemp -d)"
mkdir "$group"
trap 'rmdir "$group"; rm -rf "$folder"' EXIT
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
"$worker" data prepare --output "$folder/data" "$here/../../worker" > /dev/null
cat > "$folder/job.yaml" <<END
name: governor
model: {hidden_size: 64, intermediate_size: 512, num_hidden_layers: 8, num_attention_heads: 2}
data: {path: data, sequence_length: $tokens}
train: {steps: 6, global_batch: 192}
batch: {max_micro_batch: 192}
checkpoint: {every_steps: 0}
evaluate: {every_steps: 0, max_sequences: 1}
END

# train LIMIT_BYTES LOG [SETTINGS]: runs the worker in the group; 137 when the kernel ended it.
train() {
  local limit="$1" log="$2"
  shift 2
  echo "$limit" > "$group/memory.limit_in_bytes"
  (echo "$BASHPID" > "$group/cgroup.procs" && cd "$folder" &&
    exec "$worker" --standalone job.yaml --threads 2 --set "checkpoint.directory=$folder/saved" "$@") \
    > "$log" 2>&1
}

limit=$((limit_mb * 1000000))
train "$limit" "$folder/governed" || { cat "$folder/governed" >&2; exit 1; }
chosen="$(sed -n 's/.*micro-batches of \([0-9]*\) sequences, [0-9]* MB at most.*/\1/p' "$folder/governed" | head -1)"

# The largest size that survives two steps in what the governor aims at.
target=$((limit * 85 / 100)) low=1 high=$((chosen * 2))
while [ $((high - low)) -gt 1 ]; do
  middle=$(((low + high) / 2))
  rm -rf "$folder/saved"
  if train "$target" "$folder/fixed" --set train.steps=2 --set "train.global_batch=$middle" \
      --set "batch.micro_batch=[$middle]"; then low=$middle; else high=$middle; fi
done

python3 - "$folder/governed" "$chosen" "$low" "$limit" <<'END'
import json, re, sys
log, chosen, largest, limit = open(sys.argv[1]).read(), *map(int, sys.argv[2:])
base, slope = (float(x) for x in
               re.search(r"at most: ([\d.e+]+) GB and ([\d.e+-]+) GB a sequence", log).groups())
peaks = [float(x) * 1e6 for x in re.findall(r"tokens/s  (\d+) MB", log)]
passes = -(-192 // chosen)
predicted = (base + slope * -(-192 // passes)) * 1e9
real = max(peaks)
print(json.dumps({"bench": "governor", "figure": "predicted against real peak of a pass",
                  "predicted_bytes": predicted, "real_bytes": real, "ratio": predicted / real,
                  "limit_bytes": limit}))
print(json.dumps({"bench": "governor", "figure": "chosen size against the largest that survives",
                  "chosen": chosen, "largest": largest, "ratio": chosen / largest}))
END
