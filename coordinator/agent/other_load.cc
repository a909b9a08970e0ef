#include "coordinator/agent/other_load.h"

#include <algorithm>

namespace espalier {
namespace {

// The system counts in hundredths of a second.
constexpr absl::Duration kShortest = absl::Milliseconds(500);

}  // namespace

std::optional<double> OtherLoad::Measure(const ProcessorTimes& times, absl::Duration monotonic) {
  if (last_ && monotonic - at_ < kShortest) return load_;
  if (last_ && times.processors > 0) {
    absl::Duration own;
    for (const auto& [process, time] : times.of_program) {
      const auto before = last_->of_program.find(process);
      const bool same = before != last_->of_program.end() && before->second <= time;
      own += same ? time - before->second : time;
    }
    const absl::Duration others = times.busy - last_->busy - own;
    const double load = absl::FDivDuration(others, (monotonic - at_) * times.processors);
    load_ = std::clamp(load, 0.0, 1.0);
  }
  last_ = times;
  at_ = monotonic;
  return load_;
}

}  // namespace espalier
