// Cuts a chat template into text, {{ outputs }} and {% statements %}, with the white space that
// transformers' settings of Jinja leave (trim_blocks, lstrip_blocks), and those into words. Used by
// parser.cc. Pure: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct TemplatePart {
  enum class Kind { kText, kOutput, kStatement };
  Kind kind = Kind::kText;
  std::string text;  // without the braces
  int line = 1;
};

absl::StatusOr<std::vector<TemplatePart>> SplitTemplate(absl::string_view source);

struct TemplateWord {
  enum class Kind { kName, kText, kInteger, kReal, kSign, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;  // a name, the characters of a text, or a sign such as "=="
  int64_t integer = 0;
  double real = 0;
};

// The words of an output or a statement; the last one is kEnd.
absl::StatusOr<std::vector<TemplateWord>> WordsOf(const TemplatePart& part);

// INVALID_ARGUMENT "chat template, line 3: WHAT".
absl::Status TemplateError(int line, absl::string_view what);

}  // namespace espalier
