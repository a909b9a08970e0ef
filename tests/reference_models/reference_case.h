// ReferenceCase: one model folder (config.json, weights, expected.json as transformers recorded it)
// against this decoder, check by check. Used by main.cc. One thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct ReferenceCheck {
  std::string name;    // "logits_first_row_last_pos"
  double error = 0;    // relative, see reference_case.cc; 0 or 1 for ids
  std::string detail;  // where the largest error is
  bool passed = false;
};

struct ReferenceOptions {
  double tolerance = 1e-4;
  std::string device = "cpu";
};

// Runs every check for which expected.json has a recorded value. An error when the model cannot be
// loaded or expected.json has nothing to compare with.
absl::StatusOr<std::vector<ReferenceCheck>> RunReferenceCase(const std::string& folder,
                                                             const ReferenceOptions& options);

}  // namespace espalier
