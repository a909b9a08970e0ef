#include "worker/train/pace.h"

#include "absl/time/time.h"

namespace espalier {
namespace {
constexpr int64_t kParts = 24;
}  // namespace

void Pace::Hold() {
  if (options_.slow_down <= 1) return;
  clock_.Sleep((clock_.Monotonic() - since_) * (options_.slow_down - 1));
  since_ = clock_.Monotonic();
}

void Pace::Pretend(int64_t sequences, int64_t elements, const PassInputs& inputs) {
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

}  // namespace espalier
