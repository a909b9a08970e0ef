#include "worker/reward/arithmetic.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr int64_t kResultMax = 1000000000000000;  // 10^15

// A number, or two expressions and an operation.
struct Expression {
  char operation = 0;  // 0: a number
  int64_t number = 0;
  std::unique_ptr<Expression> left, right;
};
using ExpressionPtr = std::unique_ptr<Expression>;

ExpressionPtr Number(int64_t value) {
  auto node = std::make_unique<Expression>();
  node->number = value;
  return node;
}

ExpressionPtr Join(ExpressionPtr left, char operation, ExpressionPtr right) {
  auto node = std::make_unique<Expression>();
  node->operation = operation;
  node->left = std::move(left);
  node->right = std::move(right);
  return node;
}

int Strength(char operation) { return operation == '*' || operation == '/' ? 2 : 1; }

// nullopt: a rest, a division by zero, or too large.
std::optional<int64_t> Apply(int64_t a, char operation, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (operation) {
    case '+':
      result = a + b;
      break;
    case '-':
      result = a - b;
      break;
    case '*':
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    default:
      if (b == 0 || a % b != 0) return std::nullopt;
      result = a / b;
  }
  if (overflow || result >= kResultMax || result <= -kResultMax) return std::nullopt;
  return result;
}

std::optional<int64_t> Evaluate(const Expression& node) {
  if (node.operation == 0) return node.number;
  const std::optional<int64_t> left = Evaluate(*node.left), right = Evaluate(*node.right);
  if (!left || !right) return std::nullopt;
  return Apply(*left, node.operation, *right);
}

// With the parentheses that it needs. A negative number as an operand is in parentheses.
std::string Spell(const Expression& node, bool operand = false) {
  if (node.operation == 0) {
    return operand && node.number < 0 ? absl::StrCat("(", node.number, ")")
                                      : absl::StrCat(node.number);
  }
  const auto side = [&](const Expression& part, bool right) {
    const std::string text = Spell(part, true);
    if (part.operation == 0) return text;
    const int own = Strength(node.operation), of_part = Strength(part.operation);
    return of_part < own || (right && of_part == own) ? absl::StrCat("(", text, ")") : text;
  };
  return absl::StrCat(side(*node.left, false), " ", std::string(1, node.operation), " ",
                      side(*node.right, true));
}

// Works out the first part that is an operation of two numbers.
void ReduceOnce(Expression& node) {
  for (Expression* part : {node.left.get(), node.right.get()}) {
    if (part->operation != 0) return ReduceOnce(*part);
  }
  node.number = *Apply(node.left->number, node.operation, node.right->number);
  node.operation = 0;
}

int64_t DrawNumber(int digits, SplitMix64& random) {
  uint64_t bound = 10;
  for (uint64_t more = random.Below(static_cast<uint64_t>(digits)); more > 0; --more) bound *= 10;
  return static_cast<int64_t>(random.Below(bound));
}

char DrawOperation(const ArithmeticOptions& options, SplitMix64& random) {
  return options.operations[random.Below(options.operations.size())];
}

// Any shape.
ExpressionPtr DrawTree(int terms, const ArithmeticOptions& options, SplitMix64& random) {
  if (terms == 1) return Number(DrawNumber(options.digits, random));
  const int left = 1 + static_cast<int>(random.Below(static_cast<uint64_t>(terms - 1)));
  const char operation = DrawOperation(options, random);
  ExpressionPtr first = DrawTree(left, options, random);
  return Join(std::move(first), operation, DrawTree(terms - left, options, random));
}

// The shape that needs no parentheses: products of numbers, added up from the left.
ExpressionPtr DrawRow(const ArithmeticOptions& options, SplitMix64& random) {
  ExpressionPtr sum, product = Number(DrawNumber(options.digits, random));
  char before = 0;  // the operation between sum and product
  for (int i = 1; i < options.terms; ++i) {
    const char operation = DrawOperation(options, random);
    ExpressionPtr number = Number(DrawNumber(options.digits, random));
    if (Strength(operation) == 2) {
      product = Join(std::move(product), operation, std::move(number));
      continue;
    }
    sum = sum ? Join(std::move(sum), before, std::move(product)) : std::move(product);
    before = operation;
    product = std::move(number);
  }
  return sum ? Join(std::move(sum), before, std::move(product)) : std::move(product);
}

Question Ask(ExpressionPtr expression, int64_t answer) {
  Question question;
  question.key = Spell(*expression);
  question.text = absl::StrCat("What is ", question.key, "?");
  question.answer = absl::StrCat(answer);
  question.solution = question.key;
  while (expression->operation != 0) {
    ReduceOnce(*expression);
    absl::StrAppend(&question.solution, " = ", Spell(*expression));
  }
  absl::StrAppend(&question.solution, " <answer>", answer, "</answer>");
  return question;
}

}  // namespace

absl::Status CheckArithmetic(const ArithmeticOptions& options) {
  const auto refuse = [](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat("expressions are to have ", what...));
  };
  if (options.terms < 2 || options.terms > 8) {
    return refuse(options.terms, " numbers; allowed: 2 to 8");
  }
  if (options.digits < 1 || options.digits > 6) {
    return refuse("numbers of ", options.digits, " digits; allowed: 1 to 6");
  }
  if (options.operations.empty()) return refuse("no operation; allowed: those of +-*/");
  for (const char operation : options.operations) {
    if (absl::StrContains("+-*/", std::string(1, operation))) continue;
    return refuse("the operations '", options.operations, "'; allowed: those of +-*/");
  }
  return absl::OkStatus();
}

Question AskArithmetic(const ArithmeticOptions& options, SplitMix64& random) {
  for (;;) {
    ExpressionPtr expression =
        options.parentheses ? DrawTree(options.terms, options, random) : DrawRow(options, random);
    if (const std::optional<int64_t> answer = Evaluate(*expression)) {
      return Ask(std::move(expression), *answer);
    }
  }
}

std::vector<WorkedExample> ArithmeticExamples() {
  const auto example = [](ExpressionPtr expression) {
    const int64_t answer = *Evaluate(*expression);
    const Question question = Ask(std::move(expression), answer);
    return WorkedExample{
        .question = question.text, .solution = question.solution, .key = question.key};
  };
  return {example(Join(Number(17), '-', Number(25))),
          example(Join(Number(6), '+', Join(Number(7), '*', Number(4))))};
}

}  // namespace espalier
