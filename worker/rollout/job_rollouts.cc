#include "worker/rollout/job_rollouts.h"

#include <algorithm>
#include <filesystem>

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

absl::StatusOr<std::unique_ptr<RolloutSource>> OpenJobRollouts(const RankContext& context,
                                                               const v1::JobSpec& spec,
                                                               absl::string_view data,
                                                               const Tokenizer& tokenizer) {
  const v1::VerifierSpec& judge = spec.train().verifier();
  ASSIGN_OR_RETURN(std::unique_ptr<Verifier> verifier, OpenJobVerifier(judge, data));
  RolloutLimits limits = RolloutLimitsOf(spec.train().rollout());
  limits.memory_bytes = spec.batch().memory_limit_bytes();
  return std::make_unique<RolloutEngine>(
      context, tokenizer, std::move(verifier),
      RolloutEngine::Options{.limits = std::move(limits),
                             .judging_patience = JudgingPatience(judge)});
}

// A process may be started anew a few times, and then be silent for as long as it may.
absl::Duration JudgingPatience(const v1::VerifierSpec& spec) {
  if (spec.kind() != "external") return absl::Minutes(1);
  const int failures = ExternalVerifierOptions().failures_max + 1;
  return absl::Minutes(1) +
         failures * absl::Seconds(spec.start_limit_seconds() + spec.time_limit_seconds());
}

}  // namespace espalier
