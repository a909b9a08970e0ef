// Questions of how much a quantity is in another unit: length, mass, time, speed, volume and data
// size, as "How many gram are there per 6 kg?", with solutions such as
//   1 kg is 1000 gram, so 6 kg are 6 * 1000 = 6000 gram: <answer>6000</answer>
// Measures that countries have of their own are those of the United States; a kB is 1000 bytes, a
// KiB 1024. Used by worker/verbs.h. Pure: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/random.h"
#include "worker/reward/prompts.h"
#include "worker/reward/question_data.h"

namespace espalier {

struct UnitQuestionOptions {
  // Of "length", "mass", "time", "speed", "volume", "data"; empty: all.
  std::vector<std::string> families;
  int64_t most = 20;  // quantities are 1 to this, now and then with a half
};
// INVALID_ARGUMENT: an unknown family, or a quantity below 1 or above 1,000,000.
absl::Status CheckUnitOptions(const UnitQuestionOptions& options);

// How many `to` one `from` is. NOT_FOUND: an unknown unit; INVALID_ARGUMENT: units of different
// families.
absl::StatusOr<double> UnitRatio(absl::string_view from, absl::string_view to);

// A quantity and two units of one family, in one of several wordings. The answer is between 0.01
// and a billion; the key is quantity and units, so that wordings are not different questions.
// `options` are sound.
Question AskConversion(const UnitQuestionOptions& options, SplitMix64& random);

// What a chat shows before its question.
std::vector<WorkedExample> UnitExamples();

}  // namespace espalier
