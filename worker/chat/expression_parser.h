// Parses the words of an output or a statement as expressions of Jinja. Used by parser.cc only. One
// thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/chat/lexer.h"
#include "worker/chat/recursion.h"
#include "worker/chat/syntax.h"

namespace espalier {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<TemplateWord> words, int line)
      : words_(std::move(words)), line_(line) {}

  absl::StatusOr<ExpressionPointer> Any();        // with `a if b else c`
  absl::StatusOr<ExpressionPointer> WithoutIf();  // what a loop goes through
  // a, b, c: a list when there is more than one.
  absl::StatusOr<ExpressionPointer> AnyOrTuple();

  // Take the next word when it is this sign or name.
  bool TakeSign(absl::string_view sign);
  bool TakeName(absl::string_view name);
  absl::Status ExpectSign(absl::string_view sign);
  absl::StatusOr<std::string> Name();
  absl::Status ExpectEnd() const;
  absl::Status Error(absl::string_view expected) const;

 private:
  using Result = absl::StatusOr<ExpressionPointer>;

  const TemplateWord& word(size_t ahead = 0) const;
  bool IsSign(absl::string_view sign, size_t ahead = 0) const;
  bool IsName(absl::string_view name, size_t ahead = 0) const;
  ExpressionPointer Make(Expression::Kind kind, std::string text = "") const;
  ExpressionPointer Make(Expression::Kind kind, std::string text, ExpressionPointer first,
                         ExpressionPointer second = nullptr) const;

  Result Or();
  Result And();
  Result Not();
  Result Compare();
  Result Binary(size_t level);
  Result Unary(bool filters);
  Result Primary();
  Result Postfix(ExpressionPointer value);
  Result Filters(ExpressionPointer value);
  Result Test(ExpressionPointer value);
  Result Subscript(ExpressionPointer value);
  Result ListUntil(absl::string_view close);
  Result DictLiteral();
  Result WordValue();
  absl::Status CallArguments(Expression& call);

  std::vector<TemplateWord> words_;
  const int line_;
  size_t at_ = 0;
  RecursionLimit depth_{100, kStackOfTemplates};
};

}  // namespace espalier
