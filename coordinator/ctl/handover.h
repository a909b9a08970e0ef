// Verbs that need LibTorch are done by espalier-worker, so that `espalier` itself starts in
// milliseconds: the process becomes `espalier-worker VERB ARGUMENTS`. Used by app.cc. Main thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace espalier::ctl {

bool IsHandedOver(absl::string_view verb);

// Replaces the process by the espalier-worker beside this program, with the arguments as they are
// (verb first). Returns only on failure: NOT_FOUND says where it was looked for.
absl::Status HandOver(const std::vector<std::string>& arguments);

}  // namespace espalier::ctl
