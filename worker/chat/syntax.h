// The parts of a parsed chat template. Used by worker/chat. Plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/chat/value.h"

namespace espalier {

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    kLiteral,      // value
    kName,         // text
    kList,         // parts
    kDict,         // parts: key, value, key, value ...
    kAttribute,    // parts[0].text
    kItem,         // parts[0][parts[1]]
    kSlice,        // parts[0][parts[1]:parts[2]:parts[3]], each but the first may be nullptr
    kCall,         // parts[0](parts[1] ..., named)
    kFilter,       // parts[0] | text(parts[1] ..., named)
    kTest,         // parts[0] is text(parts[1] ..., named)
    kNot,          // not parts[0]
    kNegative,     // -parts[0]
    kAnd,          // parts[0] and parts[1]
    kOr,           // parts[0] or parts[1]
    kBinary,       // parts[0] text parts[1]
    kCompare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    kConditional,  // parts[0] if parts[1] else parts[2], which may be nullptr
  };
  Expression() = default;
  ~Expression();  // of any depth: `x.a.a.a...` is as deep as it has words
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;

  Kind kind = Kind::kLiteral;
  int line = 0;
  std::string text;
  Value value;
  std::vector<ExpressionPointer> parts;
  std::vector<std::pair<std::string, ExpressionPointer>> named;
  std::vector<std::string> operators;
};

// A part of a text, in bytes: [begin, end).
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

struct Statement {
  enum class Kind {
    kText,      // text
    kOutput,    // {{ expression }}
    kIf,        // expression, body, otherwise
    kFor,       // targets in expression if condition: body, else otherwise
    kSet,       // targets = expression; text: of the namespace targets[0]
    kSetBlock,  // targets[0] = what body writes
    kMacro,     // text(targets ..., defaults): body
    // body, which writes what the assistant says: transformers marks it so
    kGeneration,
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text;
  std::vector<std::string> targets;
  ExpressionPointer expression;
  ExpressionPointer condition;
  std::vector<ExpressionPointer> defaults;  // of the last targets
  std::vector<Statement> body;
  std::vector<Statement> otherwise;
};

}  // namespace espalier
