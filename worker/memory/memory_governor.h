// MemoryGovernor: how many sequences a micro-batch of this rank holds, from what passes over some
// were measured to take. Peak memory at a fixed sequence length is c0 + c1 * b: probe passes before
// the first step give both, and so the largest b below the target; afterwards readings of every
// step move it within bounds. Pure: no clock, no system call, no LibTorch. Used by worker/train,
// which measures and obeys. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace espalier {

class MemoryGovernor {
 public:
  struct Options {
    // Sequences of a micro-batch, at least and at most. Equal: fixed, never probed, and only
    // running out of memory makes it less.
    int64_t min = 1;
    int64_t max = 1;
    int64_t limit_bytes = 0;        // more than that ends the process
    double target_fraction = 0.85;  // of the limit: the peak aimed at
  };
  explicit MemoryGovernor(const Options& options);

  // Before the first step: run a pass over so many sequences and tell Probed or Failed, until there
  // is none. No pass is asked for that could take more than the limit, unless `min` does.
  std::optional<int64_t> NextProbe() const { return probe_; }
  // `before` the pass and at its `peak`, in bytes.
  void Probed(int64_t size, int64_t before, int64_t peak);

  // A pass over `size` sequences ran out of memory: half of it from now on, and never `size` again.
  void Failed(int64_t size);

  // What a step took: the size of its largest micro-batch, its peak, and whether the system is
  // short of memory. True when micro_batch() has changed.
  struct Reading {
    int64_t size = 0;
    int64_t peak = 0;
    bool pressure = false;
  };
  bool Observe(const Reading& reading);

  // Whether passes over `size` sequences that took `peak` bytes took so much more than predicted
  // that allocators must have kept memory of earlier ones, which is then to be given back: it grows
  // from step to step where tensors are large.
  bool KeptByAllocators(int64_t size, int64_t peak) const;

  int64_t micro_batch() const { return micro_batch_; }
  bool fixed() const { return fixed_; }
  int64_t limit_bytes() const { return options_.limit_bytes; }
  int64_t target_bytes() const { return target_; }
  // c0 + c1 * size; none before two probes.
  std::optional<int64_t> Predicted(int64_t size) const;
  // Why micro_batch() is what it is, for people.
  const std::string& reason() const { return reason_; }

 private:
  // Peak = base + slope * size.
  struct Line {
    double base = 0;
    double slope = 0;
  };
  int64_t Ceiling() const;
  int64_t LargestSafe() const;
  int64_t LargestProbed() const;
  bool Fits(int64_t size) const;
  void Fit();
  void Choose(int64_t size, std::string reason);

  Options options_;
  bool fixed_;
  int64_t target_;
  int64_t micro_batch_;
  std::optional<int64_t> failed_;  // smallest size that ran out of memory
  std::optional<int64_t> probe_;
  std::map<int64_t, int64_t> probes_;  // size -> peak
  std::optional<Line> line_;
  std::deque<int64_t> peaks_;  // of the steps since the last change, the newest ten
  std::string reason_;
};

}  // namespace espalier
