// Interpreter: runs a parsed chat template, as Jinja's sandbox does with transformers' settings.
// Used by chat_template.cc. One thread; once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/chat/recursion.h"
#include "worker/chat/syntax.h"
#include "worker/chat/value.h"

namespace espalier {

class Interpreter {
 public:
  explicit Interpreter(const Value::Dict& variables);

  // The text that the statements write. RESOURCE_EXHAUSTED after 4 million steps, or over 64 MiB
  // of text.
  absl::StatusOr<std::string> Run(const std::vector<Statement>& statements);
  // Where in that text {% generation %} wrote. What a macro or a set block writes is not followed.
  const std::vector<TextSpan>& generated() const { return generated_; }

 private:
  using Frame = absl::flat_hash_map<std::string, Value>;
  enum class Flow { kNext, kBreak, kContinue };

  absl::StatusOr<Flow> Execute(const std::vector<Statement>& statements);
  absl::StatusOr<Flow> Execute(const Statement& statement);
  absl::StatusOr<Flow> ExecuteFor(const Statement& statement);
  absl::StatusOr<Value::List> LoopItems(const Statement& statement);
  absl::Status ExecuteSet(const Statement& statement);
  absl::Status Bind(const std::vector<std::string>& targets, const Value& value, int line);
  absl::StatusOr<Value> CallMacro(const Statement& macro, const Arguments& arguments);
  // Runs statements and gives back what they write.
  absl::StatusOr<std::string> Captured(const std::vector<Statement>& statements);

  absl::StatusOr<Value> Evaluate(const Expression& expression);
  absl::StatusOr<Value> EvaluateKind(const Expression& expression);
  absl::StatusOr<Value> Container(const Expression& expression);
  absl::StatusOr<Value> AttributeOf(const Expression& expression);
  absl::StatusOr<Value> ItemOf(const Expression& expression);
  absl::StatusOr<Value> SliceOf(const Expression& expression);
  absl::StatusOr<Value> Called(const Expression& expression);
  absl::StatusOr<Value> Logical(const Expression& expression);
  absl::StatusOr<Value> Compared(const Expression& expression);
  absl::StatusOr<Value> Conditional(const Expression& expression);
  absl::StatusOr<Arguments> ArgumentsOf(const Expression& expression);

  const Value* Lookup(const std::string& name) const;
  absl::Status Step(int line);
  // Takes steps for what an operation on a value costs: by its size, or by all that is in it.
  void Charge(const Value& value);
  void ChargeAll(const Value& value);
  // As Charge, of a text by its characters, which are looked at one by one.
  void ChargeItems(const Value& value);
  // What a filter, a test or a function may look at.
  void ChargeCall(const Expression& expression, const Value& value, const Arguments& arguments);
  absl::Status Write(absl::string_view text);

  std::vector<Frame> frames_;
  std::string out_;
  int captures_ = 0;  // out_ is not the text itself
  std::vector<TextSpan> generated_;
  int64_t steps_ = 0;
  RecursionLimit depth_{200, kStackOfTemplates};  // of statements, expressions and calls
};

// left + right and so on, as in Python.
absl::StatusOr<Value> BinaryOf(absl::string_view sign, const Value& left, const Value& right);

}  // namespace espalier
