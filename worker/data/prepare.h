// `espalier data prepare`: text and JSONL files to a folder of token shards, as text or as examples
// for fine-tuning. Streams: memory does not grow with the input. Used by worker/verbs.h. One
// thread.
#pragma once

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "worker/data/prepare_options.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

// The folder appears under its name complete and synced, or not at all: it is written beside it and
// renamed. What a killed run left there is removed by the next one.
// INVALID_ARGUMENT (empty input, bad option, line of a JSONL file with its number), NOT_FOUND,
// ALREADY_EXISTS, RESOURCE_EXHAUSTED (disk full; what was written is removed).
absl::StatusOr<PrepareResult> PrepareData(FileSystem& files, const Tokenizer& tokenizer,
                                          const PrepareOptions& options);

}  // namespace espalier
