// Pace: for benchmarks of unequal machines on a single one: a rank that computes more slowly than
// this machine does, or waits in place of computing, so that more ranks than cores each have a pace
// of their own. Used by gradient_passes.h; the command line of espalier-worker says it. Compute
// thread, and autograd's.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/model/model.h"

namespace espalier {

class Pace {
 public:
  struct Options {
    // What computes takes so many times as long: each layer is followed by a wait.
    double slow_down = 1;
    // Above 0: a sequence takes so many seconds, in which nothing is computed. Gradients stay zero.
    double pretended_seconds = 0;
  };
  Pace(const Options& options, Clock& clock) : options_(options), clock_(clock) {}

  bool pretends() const { return options_.pretended_seconds > 0; }
  // A pass begins.
  void Begin() { since_ = clock_.Monotonic(); }
  // A part of it is done.
  void Hold() {
    if (options_.slow_down <= 1) return;
    clock_.Sleep((clock_.Monotonic() - since_) * (options_.slow_down - 1));
    since_ = clock_.Monotonic();
  }
  // In place of a pass of so many sequences: gradients of `elements` become final bit by bit in the
  // second two thirds, as in a backward pass.
  void Pretend(int64_t sequences, int64_t elements, const PassInputs& inputs) {
    constexpr int64_t kParts = 24;
    const absl::Duration begin = clock_.Monotonic();
    const absl::Duration whole =
        absl::Seconds(options_.pretended_seconds * static_cast<double>(sequences));
    for (int64_t part = 1; part <= kParts; ++part) {
      clock_.Sleep(begin + whole * part / kParts - clock_.Monotonic());
      if (inputs.worked) inputs.worked(0);
      const int64_t backward = part - kParts / 3;
      if (inputs.gradients_final && backward > 0) {
        inputs.gradients_final(elements * backward / (kParts - kParts / 3));
      }
    }
  }

 private:
  const Options options_;
  Clock& clock_;
  absl::Duration since_;
};

}  // namespace espalier
