// Questions of whole numbers, as "What is (7 + 5) * 3?", with solutions that work one operation out
// at a time:
//   (7 + 5) * 3 = 12 * 3 = 36 <answer>36</answer>
// Negative numbers in between are in parentheses. Used by worker/verbs.h. Pure: any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/random.h"
#include "worker/reward/prompts.h"
#include "worker/reward/question_data.h"

namespace espalier {

// How hard they are.
struct ArithmeticOptions {
  int terms = 2;                   // numbers in an expression, 2 to 8
  int digits = 2;                  // of a number at most, 1 to 6
  std::string operations = "+-*";  // of + - * /, drawn evenly; a division leaves no rest
  // Expressions of any shape; else of numbers in a row, where * and / are worked out before + and -
  // and otherwise the left one first.
  bool parentheses = false;
};
// INVALID_ARGUMENT: an option is out of its range.
absl::Status CheckArithmetic(const ArithmeticOptions& options);

// An expression of options.terms numbers whose result, and that of every part, is below 10^15,
// drawn until there is one: the more operations are products, the more often a factor is 0. The key
// is the expression. `options` are sound.
Question AskArithmetic(const ArithmeticOptions& options, SplitMix64& random);

// What a chat shows before its question.
// They have a negative result and a product, whatever the options of what follows.
std::vector<WorkedExample> ArithmeticExamples();

}  // namespace espalier
