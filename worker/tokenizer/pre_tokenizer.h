// PreTokenizer: cuts a text into the words that the model encodes one by one, as `pre_tokenizer` of
// tokenizer.json says. Used by bpe_tokenizer.h and bpe_trainer.h. Immutable: any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenizer/text_pattern.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

class PreTokenizer {
 public:
  // UNIMPLEMENTED names a type that is not known, and lists those that are.
  static absl::StatusOr<PreTokenizer> FromJson(const nlohmann::json& json);

  // Whether the words are bytes to the model (ByteLevel), not characters.
  bool byte_level() const { return byte_level_; }

  using Visit = absl::FunctionRef<absl::Status(absl::string_view)>;
  // Every word in order, none empty; the first error of `visit` ends it.
  absl::Status ForEachWord(absl::string_view text, TextStart start, Visit visit) const;

 private:
  // What becomes of what the pattern matches.
  enum class Behavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };
  struct Split {
    TextPattern pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  struct PrefixSpace {};  // a word that does not begin with a space gets one
  struct Metaspace {      // a mark for every space
    std::string mark;
    bool always = false, first = false;  // before which texts there is one
    bool split = true;
  };
  using Step = std::variant<Split, PrefixSpace, Metaspace>;

  static absl::StatusOr<Split> SplitFromJson(const nlohmann::json& json);
  static absl::StatusOr<Metaspace> MetaspaceFromJson(const nlohmann::json& json);
  static absl::StatusOr<Behavior> BehaviorFromName(const std::string& name);
  static absl::Status ForEachPiece(const Split& split, absl::string_view text, Visit visit);
  static absl::Status ForEachPiece(const Metaspace& metaspace, absl::string_view text,
                                   TextStart start, Visit visit);
  absl::Status AddSplit(absl::string_view expression, Behavior behavior);
  absl::Status Add(const nlohmann::json& json);
  absl::Status Visited(size_t step, absl::string_view text, TextStart start, Visit visit) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace espalier
