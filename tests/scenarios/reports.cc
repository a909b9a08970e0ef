// What a worker reports, in words.
#include <map>
#include <string>

#include "tests/scenarios/words.h"

namespace espalier::scenarios {
namespace {

const std::map<std::string, Phase>& Phases() {
  static const auto& phases = *new std::map<std::string, Phase>{
      {"start", Phase::kStarting},  {"boundary", Phase::kBoundary}, {"data", Phase::kDataWait},
      {"compute", Phase::kCompute}, {"exchange", Phase::kExchange}, {"update", Phase::kUpdate},
      {"pause", Phase::kPaused},    {"stop", Phase::kStopping},     {"rollout", Phase::kRollout},
      {"reward", Phase::kReward}};
  return phases;
}

}  // namespace

absl::StatusOr<Event> ReadReport(Words& words) {
  const std::string what = words.Text();
  const StreamId stream = words.Stream();
  if (what == "gone") return WorkerDetached{stream};
  if (what == "obeyed") {
    const int64_t number = words.Integer();
    return DirectiveAcked{.stream = stream, .number = number, .next_step = Step(words.Integer())};
  }
  if (what == "beat") {
    const int64_t beat = words.Integer();
    return WorkerHeartbeat{
        .stream = stream, .counters = {.phase = Phase::kCompute, .collective = beat}, .beat = beat};
  }
  const Step step(words.Integer());
  if (what == "found") return WorkerFoundState{stream, step};
  if (what == "ready") return WorkerReady{.stream = stream, .next_step = step, .device = "cpu"};
  if (what == "practised") {
    const int64_t kept = words.Integer();
    return WorkerPractised{.stream = stream, .step = step, .kept = kept, .error = words.Rest()};
  }
  if (what == "evaluated") {
    const double loss = words.Real();
    const double factor = words.empty() ? 1 : words.Real();
    return WorkerEvaluated{stream, {.step = step, .loss = loss, .rate_factor = factor}};
  }
  if (what == "checkpointed") {
    return WorkerCheckpointed{stream, {.step = step, .path = "dir", .error = words.Rest()}};
  }
  if (what == "step") {
    return WorkerStepReported{stream,
                              {.step = step,
                               .loss = words.empty() ? 1 : words.Real(),
                               .tokens = 1000,
                               .step_seconds = words.empty() ? 0.5 : words.Real()}};
  }
  const auto phase = Phases().find(words.Text());
  if (phase == Phases().end()) return absl::InvalidArgumentError("unknown phase");
  Counters counters{.step = step, .phase = phase->second, .collective = words.Integer()};
  if (!words.empty()) counters.work = words.Integer();
  return WorkerHeartbeat{.stream = stream, .counters = counters};
}

}  // namespace espalier::scenarios
