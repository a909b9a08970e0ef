#include "worker/rollout/job_rollouts.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "worker/reward/schedules.h"
#include "worker/reward/wordle_rewards.h"

namespace espalier {
namespace {

// A list of Wordle: the job's, else that of the data, which may have none (empty).
std::string WordFile(const std::string& named, absl::string_view data, const char* name) {
  if (!named.empty()) return named;
  const std::string of_data = JoinPath(data, name);
  return std::filesystem::exists(of_data) ? of_data : "";
}

}  // namespace

SampleOptions RolloutSampling(const v1::RolloutSpec& spec, double progress) {
  const LinearSchedule temperature{
      .from = spec.temperature(),
      .to = spec.has_final_temperature() ? spec.final_temperature() : spec.temperature(),
      .share = spec.temperature_share()};
  return {.temperature = temperature.At(progress),
          .top_k = spec.top_k(),
          .top_p = spec.top_p(),
          .min_p = spec.min_p(),
          .repetition_penalty = spec.repetition_penalty()};
}

SampleOptions GreedySampling() { return {.temperature = 0}; }

RolloutLimits RolloutLimitsOf(const v1::RolloutSpec& spec) {
  return {.max_new_tokens = spec.max_new_tokens(),
          .stop = {spec.stop().begin(), spec.stop().end()},
          .rows = spec.rows()};
}

absl::StatusOr<VerifierOptions> VerifierOptionsOf(const v1::VerifierSpec& spec,
                                                  absl::string_view data) {
  VerifierOptions options;
  ASSIGN_OR_RETURN(options.kind, ParseVerifierKind(spec.kind()));
  options.words = WordFile(spec.words(), data, "words.txt");
  options.secrets = WordFile(spec.secrets(), data, "secrets.txt");
  ASSIGN_OR_RETURN(options.wordle.set, ParseRewardSet(spec.rewards()));
  options.wordle.information.from_step = spec.information_from_step();
  ExternalVerifierOptions& external = options.external;
  external.command = {spec.command().begin(), spec.command().end()};
  external.folder = spec.folder();
  external.processes = spec.processes();
  external.in_flight = spec.in_flight();
  external.time_limit = absl::Seconds(spec.time_limit_seconds());
  external.start_limit = absl::Seconds(spec.start_limit_seconds());
  external.failed_reward = spec.failed_reward();
  return options;
}

absl::StatusOr<std::unique_ptr<Verifier>> OpenJobVerifier(const v1::VerifierSpec& spec,
                                                          absl::string_view data) {
  ASSIGN_OR_RETURN(const VerifierOptions options, VerifierOptionsOf(spec, data));
  return OpenVerifier(options);
}

absl::Status CheckRoom(const v1::JobSpec& spec, int64_t prompt, size_t tokens) {
  const int64_t length = spec.data().sequence_length();
  const int64_t new_ones = spec.train().rollout().max_new_tokens();
  if (tokens > 0 && static_cast<int64_t>(tokens) <= length - new_ones) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "prompt ", prompt, " has ", tokens, " tokens; with ", new_ones,
      " new ones (train.rollout.max_new_tokens) data.sequence_length ", length,
      " has room for 1 to ", length - new_ones, "; raise it, or lower max_new_tokens"));
}

absl::StatusOr<std::unique_ptr<RolloutSource>> OpenJobRollouts(const RolloutPlace& place,
                                                               const v1::JobSpec& spec,
                                                               absl::string_view data,
                                                               const Tokenizer& tokenizer) {
  const v1::VerifierSpec& judge = spec.train().verifier();
  ASSIGN_OR_RETURN(std::unique_ptr<Verifier> verifier, OpenJobVerifier(judge, data));
  RolloutLimits limits = RolloutLimitsOf(spec.train().rollout());
  limits.memory_bytes = place.memory_limit_bytes;
  limits.sharers = place.local_ranks;
  return std::make_unique<RolloutEngine>(
      place.context, tokenizer, std::move(verifier),
      RolloutEngine::Options{.limits = std::move(limits),
                             .judged_at_once = JudgedAtOnce(judge),
                             .judging_patience = JudgingPatience(judge),
                             .slow_down = place.slow_down});
}

// All that its programs can have in hand at a time: ranks are in touch again after these.
size_t JudgedAtOnce(const v1::VerifierSpec& spec) {
  const size_t most = RolloutEngine::Options().judged_at_once;
  if (spec.kind() != "external") return most;
  const auto in_hand = static_cast<size_t>(int64_t{spec.processes()} * spec.in_flight());
  return std::clamp<size_t>(in_hand, 1, most);
}

// A process may be started anew a few times, and then be silent for as long as it may.
absl::Duration JudgingPatience(const v1::VerifierSpec& spec) {
  if (spec.kind() != "external") return absl::Minutes(1);
  const int failures = ExternalVerifierOptions().failures_max + 1;
  return absl::Minutes(1) +
         failures * absl::Seconds(spec.start_limit_seconds() + spec.time_limit_seconds());
}

}  // namespace espalier
