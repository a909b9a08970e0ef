// Opens the tokenizer of a folder, which may be a prepared data folder, a checkpoint, or any model
// folder in the Hugging Face layout. Used by worker/ and by tests. Pure but for reading files: any
// thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

// By its tokenizer.json, or the tokenizer.model of SentencePiece where there is none, with
// tokenizer_config.json, chat_template.jinja and config.json beside it where there are any.
// NOT_FOUND without one; UNIMPLEMENTED names the kind, or the part of it, that is not supported.
// `path` may also be a tokenizer.json itself.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& path);
// The same from the contents of tokenizer.json alone.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(absl::string_view json);

}  // namespace espalier
