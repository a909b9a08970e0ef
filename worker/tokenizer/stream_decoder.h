// StreamDecoder: the text of ids that come one by one, as soon as its characters are whole: a
// character may be spread over several tokens. Used by text_stream.h and worker/rollout. One
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

class StreamDecoder {
 public:
  // `tokenizer` must outlive this.
  explicit StreamDecoder(const Tokenizer& tokenizer, DecodeOptions options = {})
      : tokenizer_(tokenizer), options_(options) {}

  // Text of a prompt that went before: what follows it begins no text.
  void Continue() { first_ = false; }
  // The text that is whole with this id, which is UTF-8: what can be no character any more is
  // U+FFFD. INVALID_ARGUMENT for an id outside the vocabulary.
  absl::StatusOr<std::string> Append(int32_t id);
  // What is left at the end: nothing, or U+FFFD for a character that was not finished.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  const DecodeOptions options_;
  bool first_ = true;    // no token of the text was seen yet
  std::string pending_;  // bytes of a character that is not whole
};

}  // namespace espalier
