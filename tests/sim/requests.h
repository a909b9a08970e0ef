// Requests: what the operator of a run has asked, and the rule that each request that espalierd has
// taken is answered exactly once, about the right job, and with what is true by then. Used by
// sim_coordinator.h. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "coordinator/loop/inbox.h"
#include "tests/sim/scene.h"
#include "tests/sim/sim_journal.h"

namespace espalier::sim {

class Requests {
 public:
  explicit Requests(Scene& scene) : scene_(scene) {}

  // Looks at an answer beside what is journaled; `batched`: other things were decided with it.
  using Check = std::function<void(const SimJournal& journal, bool batched)>;
  using Answered = std::function<void(const absl::StatusOr<Answer>&)>;
  // As it is put into the inbox. `answered` hears the answer. `answer` calls the check when its
  // answer comes, unless espalierd dies in that instant.
  OperatorCall Ask(const OperatorRequest& request, Answered answered,
                   std::function<void(const Check&)> answer);
  // What waits is taken; has been dealt with.
  void OnTurn() { taken_ = open_; }
  void OnTurned();
  // Nobody will answer.
  void OnCrash();

 private:
  void CheckAnswer(int64_t id, const OperatorRequest& request, const absl::StatusOr<Answer>& answer,
                   const SimJournal& journal, bool batched);

  Scene& scene_;
  int64_t next_ = 1;
  std::set<int64_t> open_;
  std::set<int64_t> taken_;
};

}  // namespace espalier::sim
