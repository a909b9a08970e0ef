// What a job says of sampling and judging, as the engine and the verifiers take it. Used by
// worker/task and tests. Pure but for what OpenJobVerifier reads and starts: any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "espalier/v1/job.pb.h"
#include "worker/generation/sample.h"
#include "worker/reward/open_verifier.h"
#include "worker/reward/verifier.h"
#include "worker/rollout/rollout_batch.h"
#include "worker/rollout/rollout_engine.h"

namespace espalier {

// How the job's completions are drawn; `progress` is that of training, 0 to 1.
SampleOptions RolloutSampling(const v1::RolloutSpec& spec, double progress);
// The likeliest ids, for tests of what was learnt.
SampleOptions GreedySampling();

// Without cache_bytes and positions.
RolloutLimits RolloutLimitsOf(const v1::RolloutSpec& spec);

// `data`: the prepared folder, whose words and secrets Wordle takes where the job names none.
// INVALID_ARGUMENT for what the job rules refuse too.
absl::StatusOr<VerifierOptions> VerifierOptionsOf(const v1::VerifierSpec& spec,
                                                  absl::string_view data);
absl::StatusOr<std::unique_ptr<Verifier>> OpenJobVerifier(const v1::VerifierSpec& spec,
                                                          absl::string_view data);
// INVALID_ARGUMENT: the prompt of that number and so many tokens leaves no room in
// data.sequence_length for train.rollout.max_new_tokens more, or is empty.
absl::Status CheckRoom(const v1::JobSpec& spec, int64_t prompt, size_t tokens);

// What samples and judges for a rank: an engine with the job's verifier. `tokenizer` outlives it.
absl::StatusOr<std::unique_ptr<RolloutSource>> OpenJobRollouts(const RolloutPlace& place,
                                                               const v1::JobSpec& spec,
                                                               absl::string_view data,
                                                               const Tokenizer& tokenizer);

// RolloutEngine::Options::judged_at_once.
size_t JudgedAtOnce(const v1::VerifierSpec& spec);
// How long a program of the user's may keep everybody waiting without an answer that is judged.
absl::Duration JudgingPatience(const v1::VerifierSpec& spec);

}  // namespace espalier
