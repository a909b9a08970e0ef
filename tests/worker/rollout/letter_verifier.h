// A verifier of which anybody can tell what it says: it accepts a completion whose text has the
// letter that its record names, and counts those that it judges. Used by sampling_world.h.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/reward/verifier.h"

namespace espalier {

class LetterVerifier final : public Verifier {
 public:
  struct Counts {
    int64_t judged = 0, calls = 0;
  };
  // `judges` is told of each, by its number; `hangs` is asked by each call whether it is silent
  // until it is stopped. Both may be null.
  LetterVerifier(Counts* counts, std::function<void(int64_t)> judges,
                 std::function<bool()> hangs = nullptr)
      : counts_(counts), judges_(std::move(judges)), hangs_(std::move(hangs)) {}
  absl::StatusOr<std::vector<Judgement>> Judge(absl::Span<const Completion> completions,
                                               const TrainingMoment& moment) override {
    std::vector<Judgement> judgements;
    ++counts_->calls;
    for (const Completion& one : completions) {
      if (one.record.empty()) return absl::InvalidArgumentError("a record that is empty");
      if (one.record == "gone") return absl::UnavailableError("the program does not start");
      ++counts_->judged;
      if (judges_) judges_(counts_->judged);
      Judgement& judgement = judgements.emplace_back();
      judgement.Add("length", static_cast<double>(one.text.size()));
      judgement.Add("step", static_cast<double>(moment.step));
      const bool has = one.text.find(one.record) != absl::string_view::npos;
      if (!has) judgement.invalid = absl::StrCat("no ", one.record);
    }
    return judgements;
  }
  absl::StatusOr<std::vector<Judgement>> JudgeUntil(absl::Span<const Completion> completions,
                                                    const TrainingMoment& moment,
                                                    const std::atomic<bool>& stop) override {
    if (!hangs_ || !hangs_()) return Judge(completions, moment);
    // A minute at most, so that a test ends to which nobody says stop.
    for (int i = 0; i < 60'000 && !stop; ++i) RealClock().Sleep(absl::Milliseconds(1));
    return stop ? absl::CancelledError("stopped") : absl::DeadlineExceededError("nobody said stop");
  }

 private:
  Counts* const counts_;
  const std::function<void(int64_t)> judges_;
  const std::function<bool()> hangs_;
};

}  // namespace espalier
