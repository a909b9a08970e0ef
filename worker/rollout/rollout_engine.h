// RolloutEngine: samples the completions of an order on all ranks and has each judged where it was
// sampled; then everybody has all of them. Ranks work apart and meet several times a second, or at
// the end of a turn that takes longer, to move what nobody has begun (rollout_queues.h). Used by
// worker/task and tests. Compute thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/reward/verifier.h"
#include "worker/rollout/rollout.h"
#include "worker/rollout/rollout_batch.h"
#include "worker/rollout/rollout_queues.h"
#include "worker/sync/together.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

class RolloutEngine final : public RolloutSource {
 public:
  struct Options {
    RolloutLimits limits;
    // Completions that are judged at first before the ranks are in touch again, and at least: as
    // many as the verifier has in hand at a time. Then as many as take about a second, 64 at most.
    size_t judged_at_once = 64;
    // How long judging as many as that may take without the processor.
    absl::Duration judging_patience = absl::Minutes(1);
    // For tests and benchmarks of unequal machines on one: a turn takes so many times as long.
    double slow_down = 1;
  };
  // All outlive this; `verifier` may be null where no order is judged.
  RolloutEngine(const RankContext& context, const Tokenizer& tokenizer,
                std::unique_ptr<Verifier> verifier, Options options)
      : context_(context),
        tokenizer_(tokenizer),
        verifier_(std::move(verifier)),
        options_(std::move(options)),
        judged_at_once_(options_.judged_at_once) {}

  absl::StatusOr<std::optional<Rollouts>> Sample(const Decoder& decoder, const RolloutOrder& order,
                                                 const RolloutAround& around) override;

 private:
  struct Run;

  // What of `items` this rank has sampled, all together all of them. Absent: called away.
  absl::StatusOr<std::optional<std::vector<Rollout>>> SampleItems(
      Run& run, const std::vector<RolloutItem>& items);
  // Between two meetings.
  absl::Status Work(Run& run, const std::vector<RolloutItem>& items, std::vector<Rollout>& mine);
  // How fast this rank is, of an order of which it has sampled so many: the next one is divided by
  // it.
  void LearnRate(size_t sampled, double seconds);
  absl::StatusOr<bool> Judge(Run& run, std::vector<Rollout>& mine);
  // How many of the first were judged; where it was stopped, maybe none.
  absl::StatusOr<size_t> JudgeSome(const Run& run, absl::Span<Rollout> rollouts,
                                   const std::atomic<bool>& stop);
  // After the time that some took.
  void AdjustJudgedAtOnce(size_t some, absl::Duration took);

  RankContext context_;
  const Tokenizer& tokenizer_;
  std::unique_ptr<Verifier> verifier_;
  const Options options_;
  double known_rate_ = 0;  // completions that this rank samples in a second; 0: not known
  size_t judged_at_once_;
  int64_t held_rows_ = 0;  // that memory had room for when it ran out; 0: it never did
};

}  // namespace espalier
