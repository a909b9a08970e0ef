// What a prepared folder holds, as text for a person. Used by preview.cc and worker/verbs.h. One
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

struct InspectOptions {
  int64_t sequence_length = 256;
  int64_t shown_samples = 1;  // of each split, decoded
};

// INVALID_ARGUMENT when the data were prepared with another tokenizer.
absl::Status CheckTokenizer(const Dataset& dataset, const Tokenizer& tokenizer);

// `espalier data inspect`: splits, shards, sizes, tokens, hash, what the sequence length cuts, and
// the text of the first samples.
absl::StatusOr<std::string> InspectData(const Dataset& dataset, const Tokenizer& tokenizer,
                                        InspectOptions options);

}  // namespace espalier
