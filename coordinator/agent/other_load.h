// OtherLoad: how busy a machine is with what is none of Espalier's, from processor times that are
// read one after the other. Used by node_facts.h and tests. Plain value.
#pragma once

#include <optional>

#include "absl/time/time.h"
#include "common/platform/platform.h"

namespace espalier {

class OtherLoad {
 public:
  // Of the processors, from 0 to 1, since the last times; absent: there are none, or they are too
  // fresh. What of_program used is Espalier's.
  std::optional<double> Measure(const ProcessorTimes& times, absl::Duration monotonic);

 private:
  std::optional<ProcessorTimes> last_;
  absl::Duration at_;
  std::optional<double> load_;
};

}  // namespace espalier
