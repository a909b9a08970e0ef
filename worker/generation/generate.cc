#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/generation/batch_generator.h"

namespace espalier {

absl::StatusOr<std::vector<Continued>> GenerateAll(const Decoder& decoder,
                                                   std::vector<Sequence> sequences, int64_t rows) {
  const int64_t most = decoder.config().max_position_embeddings;
  const auto count = static_cast<int64_t>(sequences.size());
  BatchGenerator::Options options{.rows = std::clamp<int64_t>(rows, 1, std::max<int64_t>(1, count)),
                                  .positions = 1};
  for (const Sequence& one : sequences) {
    RETURN_IF_ERROR(CheckSequenceOptions(one));
    const int64_t prompt = static_cast<int64_t>(one.prompt.size());
    const int64_t needed = prompt + std::min(one.max_new_tokens, most);
    options.positions = std::max(options.positions, std::min(needed, most));
  }
  ASSIGN_OR_RETURN(BatchGenerator batch, BatchGenerator::Create(decoder, options));
  for (const Sequence& one : sequences) RETURN_IF_ERROR(batch.Check(one));
  int64_t first = 0;
  for (Sequence& one : sequences) {
    ASSIGN_OR_RETURN(const int64_t id, batch.Add(std::move(one)));
    if (first == 0) first = id;  // they follow each other
  }
  std::vector<Continued> results(static_cast<size_t>(count));
  while (batch.busy()) {
    ASSIGN_OR_RETURN(std::vector<Continued> ended, batch.Turn());
    for (Continued& one : ended) {
      if (one.end == SequenceEnd::kFailed) return NotNumbers();
      results[static_cast<size_t>(one.id - first)] = std::move(one);
    }
  }
  return results;
}

absl::StatusOr<std::vector<int32_t>> Generate(const Decoder& decoder, Sequence sequence) {
  std::vector<Sequence> one;
  one.push_back(std::move(sequence));
  ASSIGN_OR_RETURN(std::vector<Continued> results, GenerateAll(decoder, std::move(one), 1));
  return std::move(results[0].new_ids);
}

}  // namespace espalier
