// Verifier: what judges completions. Asked by the tasks that learn from rewards (worker/task), with
// many completions at once; implementations: wordle_verifier.h, answers.h and, of a user's
// own program, external_verifier.h. Used by worker/reward, worker/rollout and
// worker/task/grpo_slots.h. A verifier belongs to one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace espalier {

// A completion to be judged. Both texts outlive the call.
struct Completion {
  // What the prompt's row says besides its text, as JSON: the secret of a game, the right answer.
  absl::string_view record;
  // What the model wrote behind the prompt, without its end-of-text token.
  absl::string_view text;
};

// Where training is, for rewards that change with it.
struct TrainingMoment {
  int64_t step = 0;     // from 0
  double progress = 0;  // of the whole training, 0 to 1
};

struct RewardComponent {
  std::string name;
  double value = 0;
  friend bool operator==(const RewardComponent&, const RewardComponent&) = default;
};

struct Judgement {
  // In an order that is always the same of one verifier; all finite.
  std::vector<RewardComponent> components;
  double total = 0;
  // Why the completion is not accepted, for a person; empty: it is, and rejection sampling keeps
  // it.
  std::string invalid;

  bool accepted() const { return invalid.empty(); }
  // 0 where there is none of that name.
  double component(absl::string_view name) const {
    for (const RewardComponent& one : components) {
      if (one.name == name) return one.value;
    }
    return 0;
  }
  void Add(std::string name, double value) {
    total += value;
    components.push_back({.name = std::move(name), .value = value});
  }
};

class Verifier {
 public:
  virtual ~Verifier() = default;
  // Judgements of the first completions, in their order; none has any effect on another's. Of all,
  // unless that takes long: then of one at least, and whoever asked asks again for the others, so
  // that nothing waits for all of them. A completion that is wrong, malformed or not UTF-8 is
  // judged; a record that is makes the call fail (INVALID_ARGUMENT, with the record). UNAVAILABLE:
  // a program that judges cannot be kept running.
  virtual absl::StatusOr<std::vector<Judgement>> Judge(absl::Span<const Completion> completions,
                                                       const TrainingMoment& moment) = 0;
  // The same; but once `stop`, which another thread may set, is true it returns soon, with
  // CANCELLED for what would take longer. Where nobody is waited for, nothing does.
  virtual absl::StatusOr<std::vector<Judgement>> JudgeUntil(
      absl::Span<const Completion> completions, const TrainingMoment& moment,
      const std::atomic<bool>& /*stop*/) {
    return Judge(completions, moment);
  }
};

// The first completion that is accepted, which is the one that rejection sampling keeps; -1 when
// none is.
inline int64_t FirstAccepted(absl::Span<const Judgement> judgements) {
  for (size_t i = 0; i < judgements.size(); ++i) {
    if (judgements[i].accepted()) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace espalier
