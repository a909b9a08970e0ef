#include "worker/rollout/rollout_engine.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/control/progress.h"
#include "worker/rollout/rollout_bytes.h"
#include "worker/sync/background_work.h"

namespace espalier {
namespace {

// What is judged before the ranks are in touch again: so many at most, or what takes so long.
constexpr size_t kJudgedAtOnce = 64;
constexpr absl::Duration kJudgingLong = absl::Seconds(1);
constexpr absl::Duration kJudgingShort = absl::Milliseconds(250);

// Between two looks at whether all ranks have judged: short at first, since most take a moment.
constexpr absl::Duration kFirstLook = absl::Milliseconds(1);
constexpr absl::Duration kLastLook = absl::Milliseconds(100);

// What ranks tell each other when they meet.
struct Meeting {
  RolloutLoad load;
  int32_t called_away = 0;
  int32_t failed = 0;
};

// A span of time that is measured and told.
class Part {
 public:
  Part(RolloutPart part, Clock& clock, const RolloutAround& around, double& seconds)
      : part_(part), clock_(clock), around_(around), seconds_(seconds), begin_(clock.Monotonic()) {
    if (around.begins) around.begins(part);
  }
  ~Part() {
    seconds_ += absl::ToDoubleSeconds(clock_.Monotonic() - begin_);
    if (around_.done) around_.done(part_);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

 private:
  const RolloutPart part_;
  Clock& clock_;
  const RolloutAround& around_;
  double& seconds_;
  const absl::Duration begin_;
};

// While this is there the rank waits for others, and is not the one that is stuck.
class Waiting {
 public:
  explicit Waiting(ProgressBoard& progress) : progress_(progress), phase_(progress.phase.load()) {
    progress.Enter(v1::PHASE_EXCHANGE);
  }
  ~Waiting() { progress_.Enter(phase_); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  ProgressBoard& progress_;
  const v1::Phase phase_;
};

template <typename T>
absl::StatusOr<std::vector<T>> Meet(const RankContext& context, const T& told) {
  const Waiting waiting(context.progress);
  return GatherValues(context.collective, told);
}

std::vector<RolloutItem> ItemsOf(const RolloutOrder& order) {
  std::vector<RolloutItem> items;
  for (size_t place = 0; place < order.prompts.size(); ++place) {
    const RolloutPrompt& prompt = order.prompts[place];
    const int64_t samples = prompt.samples > 0 ? prompt.samples : order.samples;
    for (int64_t sample = prompt.first; sample < prompt.first + samples; ++sample) {
      items.push_back({static_cast<int64_t>(place), sample});
    }
  }
  return items;
}

bool Before(const Rollout& a, const Rollout& b) {
  return a.prompt != b.prompt ? a.prompt < b.prompt : a.sample < b.sample;
}

// Of what all ranks sent, sorted: whether it is what was to be sampled, each once.
absl::Status CheckAll(const std::vector<Rollout>& all, const std::vector<RolloutItem>& items) {
  bool same = all.size() == items.size();
  for (size_t i = 0; same && i < all.size(); ++i) {
    same = all[i].prompt == items[i].prompt && all[i].sample == items[i].sample;
  }
  if (same) return absl::OkStatus();
  return absl::InternalError("the ranks sent other completions than were to be sampled");
}

// Of judging that the ranks have shared. Where the job has got on before, its program worked: what
// that lacks now, a service or a file, is not the job's.
absl::Status OfJudging(const RolloutAround& around, absl::Status shared) {
  const bool got_on = around.step > 0 || around.kept > 0;
  switch (shared.code()) {
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
      return got_on ? OfTheirNodes(std::move(shared)) : shared;
    default:
      return shared;
  }
}

bool CalledAway(const RolloutAround& around) { return around.called_away && around.called_away(); }

// RunTogether of work that ends soon once `stop` is true, which it becomes on all ranks when one is
// called away. Whether it did; the same on all ranks.
absl::StatusOr<bool> RunUntilCalledAway(const RankContext& context, const RolloutAround& around,
                                        const std::function<absl::Status()>& work,
                                        std::atomic<bool>& stop) {
  BackgroundWork background(work, context.clock);
  const auto wait = [&]() -> absl::StatusOr<bool> {
    for (absl::Duration pause = kFirstLook;; pause = std::min(2 * pause, kLastLook)) {
      const bool mine = background.WaitFor(pause);
      ASSIGN_OR_RETURN(const std::optional<SharedOutcome> outcome,
                       LookTogether(context, background));
      if (outcome)
        return outcome->status.ok() ? absl::StatusOr<bool>(stop.load()) : outcome->status;
      const int32_t called_away = CalledAway(around) ? 1 : 0;
      ASSIGN_OR_RETURN(const std::vector<int32_t> all,
                       GatherValues(context.collective, called_away));
      if (std::find(all.begin(), all.end(), 1) != all.end()) stop = true;
      if (mine) context.clock.Sleep(pause);
    }
  };
  absl::StatusOr<bool> away = wait();
  stop = true;  // where the ranks have lost each other, nobody waits for it either
  background.End(context.patience);
  return away;
}

}  // namespace

// An order under way on this rank.
struct RolloutEngine::Run {
  const RolloutOrder& order;
  const RolloutAround& around;
  RolloutBatch batch;
  RolloutFigures figures = {};
  std::optional<RolloutQueues> queues = std::nullopt;
  RolloutLoad load = {};                        // since the ranks met last
  double tokens_per_second = 0;                 // over the last turns; 0: not known
  double seconds = 0;                           // in which this rank has sampled
  absl::Duration until = absl::ZeroDuration();  // the next meeting
};

absl::StatusOr<std::optional<Rollouts>> RolloutEngine::Sample(const Decoder& decoder,
                                                              const RolloutOrder& order,
                                                              const RolloutAround& around) {
  if (order.judged && verifier_ == nullptr) {
    return absl::InvalidArgumentError("completions are to be judged and there is no verifier");
  }
  RolloutLimits limits = options_.limits;
  if (held_rows_ > 0) limits.rows = held_rows_;
  const RolloutBatch::Parts parts{decoder, tokenizer_, order, limits, around};
  RETURN_IF_ERROR(RolloutBatch::Check(parts));
  Run run{.order = order, .around = around, .batch = RolloutBatch(parts)};
  const std::vector<RolloutItem> items = ItemsOf(order);
  ASSIGN_OR_RETURN(std::optional<std::vector<Rollout>> mine, SampleItems(run, items));
  if (run.batch.ran_out()) held_rows_ = run.batch.rows();
  if (!mine) return std::nullopt;
  ASSIGN_OR_RETURN(const bool judged, Judge(run, *mine));
  if (!judged) return std::nullopt;
  ASSIGN_OR_RETURN(const std::vector<std::string> packed,
                   GatherBytes(context_.collective, PackRollouts(*mine)));
  Rollouts rollouts;
  for (const std::string& bytes : packed) {
    ASSIGN_OR_RETURN(std::vector<Rollout> of_rank, UnpackRollouts(bytes));
    std::move(of_rank.begin(), of_rank.end(), std::back_inserter(rollouts.all));
  }
  std::sort(rollouts.all.begin(), rollouts.all.end(), Before);
  RETURN_IF_ERROR(CheckAll(rollouts.all, items));
  for (const Rollout& one : rollouts.all) {
    run.figures.new_tokens += static_cast<int64_t>(one.ids.size());
    ++run.figures.samples;
  }
  rollouts.figures = run.figures;
  return rollouts;
}

absl::StatusOr<std::optional<std::vector<Rollout>>> RolloutEngine::SampleItems(
    Run& run, const std::vector<RolloutItem>& items) {
  const Part part(RolloutPart::kSampling, context_.clock, run.around, run.figures.rollout_seconds);
  Collective& collective = context_.collective;
  std::vector<int64_t> shares = run.around.shares;
  if (shares.empty()) shares.assign(static_cast<size_t>(collective.world_size()), 1);
  run.queues.emplace(static_cast<int64_t>(items.size()), shares);
  run.load = {.rate = known_rate_};
  std::vector<Rollout> mine;
  for (absl::Status status;; status = Work(run, items, mine)) {
    const RolloutLimit limit = run.around.limit ? run.around.limit() : RolloutLimit();
    run.load.part = limit.part;
    run.load.largest_share = limit.largest_share;
    const Meeting told{run.load, CalledAway(run.around) ? 1 : 0, status.ok() ? 0 : 1};
    ASSIGN_OR_RETURN(const std::vector<Meeting> all, Meet(context_, told));
    std::vector<RolloutLoad> loads;
    bool failed = false, away = false;
    int64_t running = 0;
    for (const Meeting& one : all) {
      loads.push_back(one.load);
      running += one.load.running;
      failed = failed || one.failed != 0;
      away = away || one.called_away != 0;
    }
    if (failed) {
      ASSIGN_OR_RETURN(const SharedOutcome outcome, ShareStatus(collective, status));
      return outcome.status;
    }
    run.queues->Meet(loads);
    if (running + run.queues->waiting() == 0) {
      LearnRate(mine.size(), run.seconds);
      return mine;
    }
    if (away) return std::nullopt;
    run.until = context_.clock.Monotonic() + UntilNextMeeting(*run.queues, loads);
  }
}

// One that was left out for being slow comes to be tried again.
void RolloutEngine::LearnRate(size_t sampled, double seconds) {
  if (sampled == 0) {
    known_rate_ *= 2;
  } else if (seconds > 0) {
    known_rate_ = static_cast<double>(sampled) / seconds;
  }
}

absl::Status RolloutEngine::Work(Run& run, const std::vector<RolloutItem>& items,
                                 std::vector<Rollout>& mine) {
  const auto& queue = run.queues->of(static_cast<size_t>(context_.collective.rank().value()));
  const absl::Duration begin = context_.clock.Monotonic();
  const int64_t tokens_before = run.batch.new_tokens();
  size_t begun = 0;
  absl::Duration now = begin;
  do {
    for (; begun < queue.size() && run.batch.has_room(); ++begun) {
      RETURN_IF_ERROR(run.batch.Begin(items[static_cast<size_t>(queue[begun])]));
    }
    if (run.batch.running() == 0) break;
    RETURN_IF_ERROR(run.batch.Turn(mine));
    context_.progress.Worked();
    if (options_.slow_down > 1) {
      context_.clock.Sleep((context_.clock.Monotonic() - now) * (options_.slow_down - 1));
    }
    now = context_.clock.Monotonic();
  } while (now < run.until);
  const double seconds = absl::ToDoubleSeconds(now - begin);
  run.seconds += seconds;
  const auto tokens = static_cast<double>(run.batch.new_tokens() - tokens_before);
  if (seconds > 0 && tokens > 0) {
    const double measured = tokens / seconds;
    run.tokens_per_second =
        run.tokens_per_second > 0 ? (run.tokens_per_second + measured) / 2 : measured;
  }
  run.load.begun = static_cast<int64_t>(begun);
  run.load.running = run.batch.running();
  if (run.tokens_per_second > 0) {
    run.load.rate = run.tokens_per_second / run.batch.mean_tokens();
    run.load.seconds = run.batch.tokens_to_come() / run.tokens_per_second;
  } else if (known_rate_ > 0) {  // nothing of this order is measured: as in the last one
    run.load.seconds = static_cast<double>(run.load.running) / known_rate_;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RolloutEngine::Judge(Run& run, std::vector<Rollout>& mine) {
  if (!run.order.judged) return true;
  const Part part(RolloutPart::kJudging, context_.clock, run.around, run.figures.reward_seconds);
  RankContext patient = context_;
  patient.patience = std::max(patient.patience, options_.judging_patience);
  absl::Span<Rollout> left = absl::MakeSpan(mine);
  struct Left {
    int32_t some = 0;
    int32_t called_away = 0;
  };
  for (;;) {
    const Left told{left.empty() ? 0 : 1, CalledAway(run.around) ? 1 : 0};
    ASSIGN_OR_RETURN(const std::vector<Left> all, Meet(context_, told));
    const auto any = [&all](int32_t Left::*field) {
      return std::any_of(all.begin(), all.end(), [=](const Left& one) { return one.*field != 0; });
    };
    if (!any(&Left::some)) return true;
    if (any(&Left::called_away)) return false;
    const absl::Span<Rollout> some = left.first(std::min(judged_at_once_, left.size()));
    absl::Duration took;
    size_t count = 0;
    std::atomic<bool> stop = false;
    const auto judge = [&]() -> absl::Status {
      const absl::Duration begin = context_.clock.Monotonic();
      ASSIGN_OR_RETURN(count, JudgeSome(run, some, stop));
      took = context_.clock.Monotonic() - begin;
      return absl::OkStatus();
    };
    const absl::StatusOr<bool> away = RunUntilCalledAway(patient, run.around, judge, stop);
    if (!away.ok()) return OfJudging(run.around, away.status());
    if (*away) return false;
    AdjustJudgedAtOnce(some.size(), took);
    context_.progress.Worked();
    left.remove_prefix(count);
  }
}

void RolloutEngine::AdjustJudgedAtOnce(size_t some, absl::Duration took) {
  if (some < judged_at_once_) return;  // what was left
  if (took > kJudgingLong) {
    judged_at_once_ = std::max(options_.judged_at_once, judged_at_once_ / 2);
  } else if (took < kJudgingShort) {
    judged_at_once_ = std::max(judged_at_once_, std::min(kJudgedAtOnce, 2 * judged_at_once_));
  }
}

absl::StatusOr<size_t> RolloutEngine::JudgeSome(const Run& run, absl::Span<Rollout> rollouts,
                                                const std::atomic<bool>& stop) {
  std::vector<Completion> completions;
  for (const Rollout& one : rollouts) {
    completions.push_back(
        {.record = run.order.prompts[static_cast<size_t>(one.prompt)].record, .text = one.text});
  }
  if (completions.empty()) return 0;
  absl::StatusOr<std::vector<Judgement>> judgements =
      verifier_->JudgeUntil(completions, run.order.moment, stop);
  if (stop && absl::IsCancelled(judgements.status())) return 0;
  if (absl::IsUnavailable(judgements.status())) {  // no peer is lost: this node cannot judge
    return absl::FailedPreconditionError(judgements.status().message());
  }
  RETURN_IF_ERROR(judgements.status());
  const size_t count = judgements->size();
  for (size_t i = 0; i < count; ++i) rollouts[i].judgement = std::move((*judgements)[i]);
  return count;
}

}  // namespace espalier
