// Parses a chat template. Used by chat_template.cc. Pure: any thread.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/chat/syntax.h"

namespace espalier {

// INVALID_ARGUMENT names the line, and what is not known or not expected there.
absl::StatusOr<std::vector<Statement>> ParseTemplate(absl::string_view source);

}  // namespace espalier
