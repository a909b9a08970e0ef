// `espalier data inspect`: what a prepared folder holds, as text for a person. Used by
// worker/data_verb.h. One thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/formats/tokenizer.h"

namespace espalier {

struct InspectOptions {
  int64_t sequence_length = 256;
  int64_t shown_samples = 1;  // of each split, decoded
};

// Splits, shards, sizes, tokens, hash, and the text of the first samples.
absl::StatusOr<std::string> InspectData(const Dataset& dataset, const Tokenizer& tokenizer,
                                        InspectOptions options);

}  // namespace espalier
