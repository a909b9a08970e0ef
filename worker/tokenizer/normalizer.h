// Normalizer: what is done to a text before it is cut into words, as `normalizer` of tokenizer.json
// says. Used by bpe_tokenizer.h. Immutable: any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenizer/text_pattern.h"
#include "worker/tokenizer/tokenizer.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {

class Normalizer {
 public:
  // UNIMPLEMENTED names a type that is not known, and lists those that are.
  static absl::StatusOr<Normalizer> FromJson(const nlohmann::json& json);

  bool empty() const { return steps_.empty(); }
  // RESOURCE_EXHAUSTED for over 64 times its bytes and 1 MiB.
  // With kContinues nothing is put before it.
  absl::StatusOr<std::string> Apply(absl::string_view text, TextStart start) const;

 private:
  struct Prepend {
    std::string text;
  };
  struct Replace {
    TextPattern pattern;
    std::string by;
  };
  struct Strip {
    bool left = false, right = false;
  };
  using Step = std::variant<NormalForm, Prepend, Replace, Strip>;

  absl::Status Add(const nlohmann::json& json, int depth);
  // `most`: bytes that a text may become.
  static absl::StatusOr<std::string> Applied(const Step& step, std::string text, size_t most);

  std::vector<Step> steps_;
};

}  // namespace espalier
