// Verifiers by name, as jobs and programs choose them: those that come with Espalier, and programs
// of the user's own. README.md has what their records and completions look like. Used by
// worker/rollout, and tests/worker/reward. Pure but for the files that are read: any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/reward/external_verifier.h"
#include "worker/reward/verifier.h"
#include "worker/reward/wordle_rewards.h"

namespace espalier {

enum class VerifierKind {
  kWordle,      // wordle_verifier.h
  kUnits,       // answers.h, AnswerKind::kMeasure
  kArithmetic,  // answers.h, AnswerKind::kWhole
  kExternal,    // external_verifier.h
};
// "wordle", "units", "arithmetic" or "external".
absl::StatusOr<VerifierKind> ParseVerifierKind(absl::string_view text);

struct VerifierOptions {
  VerifierKind kind = VerifierKind::kArithmetic;
  // Of kWordle: files of word_list.h, as `data make wordle` leaves them beside its prompts; without
  // one of secrets every word may be the secret.
  std::string words;
  std::string secrets;
  WordleRewardOptions wordle;
  // Of kExternal.
  ExternalVerifierOptions external;
};
// With the status of what could not be read or started; INVALID_ARGUMENT for Wordle without words.
// Programs run, and lists are held, as long as the verifier is there.
absl::StatusOr<std::unique_ptr<Verifier>> OpenVerifier(const VerifierOptions& options);

}  // namespace espalier
