// `espalier data preview`: samples of a prepared folder token by token, as a person reads them,
// with what counts in the loss. Used by worker/verbs.h. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

struct PreviewOptions {
  int64_t rows = 3;
  int64_t first = 0;
  std::string split = kTrainSplit;
  int64_t sequence_length = 2048;
  bool colour = false;  // escapes of a terminal; else every line says what its tokens are
};

// Each sample as lines of tokens, with '|' between them. Line breaks and what cannot be printed are
// spelled ("\n", "\xe2"), special tokens stand in full. A line holds tokens that all count, or that
// all do not, and ends at a line break of the text and where a document of a text ends. What only
// fills a row is told by its number. NOT_FOUND and FAILED_PRECONDITION as Dataset says;
// OUT_OF_RANGE when the split has no such row.
absl::StatusOr<std::string> PreviewData(const Dataset& dataset, const Tokenizer& tokenizer,
                                        const PreviewOptions& options);

}  // namespace espalier
