// TextPattern: a regular expression of a tokenizer.json, as its library (Oniguruma) understands it,
// matched by PCRE2. Used by pre_tokenizer.h and normalizer.h. Immutable: any thread; a
// PatternMatches belongs to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class TextPattern {
 public:
  // UNIMPLEMENTED for what the two libraries understand differently, such as \w and nested
  // classes; INVALID_ARGUMENT for what is no expression.
  static absl::StatusOr<TextPattern> Compile(absl::string_view expression);
  // Matches `text` itself.
  static absl::StatusOr<TextPattern> Literal(absl::string_view text);

  TextPattern(TextPattern&&) = default;
  TextPattern& operator=(TextPattern&&) = default;

 private:
  friend class PatternMatches;
  struct Code;
  struct DeleteCode {
    void operator()(Code* code) const;
  };
  TextPattern() = default;

  std::string expression_;
  std::unique_ptr<Code, DeleteCode> code_;
};

// The expression in PCRE2's spelling; see TextPattern::Compile.
absl::StatusOr<std::string> PcreOf(absl::string_view expression);

// The matches in a text one after the other, which do not overlap. No match touches a byte that is
// not UTF-8. Both arguments must outlive this.
class PatternMatches {
 public:
  struct Match {
    size_t begin = 0, end = 0;
  };
  PatternMatches(const TextPattern& pattern, absl::string_view text)
      : pattern_(pattern), text_(text) {}

  // Nothing behind the last. RESOURCE_EXHAUSTED when the expression takes too long.
  absl::StatusOr<std::optional<Match>> Next();

 private:
  // Moves on to the next run of UTF-8 that is not empty.
  bool NextRun();

  const TextPattern& pattern_;
  absl::string_view text_;
  size_t run_begin_ = 0, run_end_ = 0;  // the run of UTF-8 that is being searched
  size_t from_ = 0;                     // where the next search begins
};

}  // namespace espalier
