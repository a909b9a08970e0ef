// Generate: continues a sequence of token ids with a decoder, one token at a time, keeping keys and
// values. Used by worker/verbs.h and worker/generate_verb.cc. Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/random.h"
#include "worker/model/decoder.h"

namespace espalier {

struct SampleOptions {
  double temperature = 1;  // logits are divided by it; 0: always the likeliest id
  int64_t top_k = 0;       // only the k likeliest ids; 0: all
  double top_p = 1;        // only the likeliest ids that together reach this probability
};

// One id drawn from softmax(logits / temperature) over the ids that top_k, then top_p leave; equal
// logits are ordered by id. `logits` has one entry per id.
int32_t SampleToken(absl::Span<const float> logits, const SampleOptions& options,
                    SplitMix64& random);

struct GenerateOptions {
  int64_t max_new_tokens = 200;
  SampleOptions sample;
  uint64_t seed = 1;
  std::vector<int32_t> stop_ids;  // generation ends at one of them, which is not part of the result
  // Called with each new id; false ends generation after it. May be empty.
  std::function<bool(int32_t id)> on_token;
};

// INVALID_ARGUMENT names what is out of range; costs nothing, so before a model is loaded.
absl::Status CheckGenerateOptions(const GenerateOptions& options);

// The new ids. INVALID_ARGUMENT for an empty prompt, an id outside the vocabulary, options out of
// range and more positions than the model is meant for; RESOURCE_EXHAUSTED when memory is short.
absl::StatusOr<std::vector<int32_t>> Generate(const Decoder& decoder,
                                              absl::Span<const int32_t> prompt,
                                              const GenerateOptions& options);

}  // namespace espalier
