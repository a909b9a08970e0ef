// What a verifier that is a program of the user's answers, one JSON object a line (README.md has
// the protocol). Used by external_verifier.cc. Pure: any thread.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/reward/verifier.h"

namespace espalier {

struct ExternalAnswer {
  int64_t id = 0;  // of the request
  Judgement judgement;
};

// INVALID_ARGUMENT for a line that is no answer, with what is wrong with it but without the line.
absl::StatusOr<ExternalAnswer> ParseExternalAnswer(absl::string_view line);

// INVALID_ARGUMENT for whoever reads of it: which program wrote which line, and what is wrong.
absl::Status NoAnswer(absl::string_view program, absl::string_view line, absl::string_view why);

}  // namespace espalier
