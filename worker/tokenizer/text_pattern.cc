#include "worker/tokenizer/text_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

constexpr size_t kExpressionBytesMax = 16 << 10;
constexpr size_t kShownBytes = 200;
// Steps back that a match may take: PCRE2's own limit, and some for every byte that is left.
constexpr uint64_t kMatchLimit = 10'000'000, kMatchLimitPerByte = 8;

// What a thread needs to match, made once.
struct Scratch {
  Scratch() {
    data = pcre2_match_data_create(1, nullptr);
    context = pcre2_match_context_create(nullptr);
  }
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
};

Scratch& ThreadScratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct TextPattern::Code {
  pcre2_code* code = nullptr;
};

void TextPattern::DeleteCode::operator()(Code* code) const {
  pcre2_code_free(code->code);
  delete code;
}

absl::StatusOr<TextPattern> TextPattern::Compile(absl::string_view expression) {
  if (expression.size() > kExpressionBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a regular expression has ", expression.size(),
                                                   " bytes; at most ", kExpressionBytesMax,
                                                   " are allowed"));
  }
  ASSIGN_OR_RETURN(const std::string spelling, PcreOf(expression));
  TextPattern pattern;
  pattern.expression_ = std::string(expression);
  pattern.code_.reset(new Code);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pattern.code_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelling.data()), spelling.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, context);
  pcre2_compile_context_free(context);
  if (pattern.code_->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the regular expression '",
                                                   expression.substr(0, kShownBytes),
                                                   "' cannot be read: ", ErrorText(error)));
  }
  // Without a compiler for this processor the interpreter does the same, slower.
  pcre2_jit_compile(pattern.code_->code, PCRE2_JIT_COMPLETE);
  return pattern;
}

absl::StatusOr<TextPattern> TextPattern::Literal(absl::string_view text) {
  std::string expression;
  for (const char c : text) {
    if (absl::string_view("\\^$.|?*+()[]{}&-").find(c) != absl::string_view::npos) {
      expression += '\\';
    }
    expression += c;
  }
  return Compile(expression);
}

bool PatternMatches::NextRun() {
  for (;;) {
    if (run_end_ == text_.size()) return false;
    const size_t bytes = ValidUtf8Prefix(text_.substr(run_end_));
    if (bytes > 0) {
      run_begin_ = from_ = run_end_;
      run_end_ += bytes;
      return true;
    }
    ++run_end_;
  }
}

absl::StatusOr<std::optional<PatternMatches::Match>> PatternMatches::Next() {
  Scratch& scratch = ThreadScratch();
  if (scratch.data == nullptr || scratch.context == nullptr) {
    return absl::ResourceExhaustedError("no memory for matching");
  }
  for (;;) {
    if (from_ >= run_end_ && !NextRun()) return std::nullopt;
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text_.data() + run_begin_);
    const size_t size = run_end_ - run_begin_;
    const auto match = [&](uint32_t options) {
      return pcre2_match(pattern_.code_->code, subject, size, from_ - run_begin_,
                         PCRE2_NO_UTF_CHECK | options, scratch.data, scratch.context);
    };
    pcre2_set_match_limit(scratch.context,
                          static_cast<uint32_t>(std::min<uint64_t>(
                              kMatchLimit + kMatchLimitPerByte * (run_end_ - from_), UINT32_MAX)));
    int found = match(0);
    // The compiled form has a stack of 32 KB; the interpreter uses the heap.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) {
      from_ = run_end_;
      continue;
    }
    if (found < 0) {
      return absl::ResourceExhaustedError(absl::StrCat("the tokenizer's regular expression '",
                                                       pattern_.expression_.substr(0, kShownBytes),
                                                       "' cannot be matched: ", ErrorText(found)));
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(scratch.data);
    const Match result{run_begin_ + offsets[0], run_begin_ + offsets[1]};
    from_ = result.end;
    if (result.begin == result.end) {
      from_ += from_ < run_end_ ? FirstCodePoint(text_.substr(from_)).bytes : 1;
    }
    return result;
  }
}

}  // namespace espalier
