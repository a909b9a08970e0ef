// The verifier of Wordle: a record is a game before its next turn,
//   {"secret": "ALLEY", "history": [["CRANE", "C(x) R(x) A(-) N(x) E(-)"], ["SWEAT", "XXYYX"]]}
// and a completion, which follows the prompt's "<think>", is that turn:
//   A and E are elsewhere.</think>
//   <guess>ALLEY</guess>
// Used by open_verifier.cc, worker/task and
// tests/bench/reward_bench.cc. One thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/reward/verifier.h"
#include "worker/reward/word_list.h"
#include "worker/reward/wordle_rewards.h"

namespace espalier {

// A secret, and the history of its game. `history` may be missing; its marks may be, since the
// secret tells them ("CRANE", or ["CRANE"]). INVALID_ARGUMENT: another shape, or marks that the
// secret does not give.
struct WordleRecord {
  WordleWord secret;  // in the vocabulary or not
  History history;
};
absl::StatusOr<WordleRecord> ParseWordleRecord(absl::string_view json);
// On one line, with marks as "XXYXY", whatever they were read from: ParseWordleRecord gives the
// same record back.
std::string WriteWordleRecord(const WordleRecord& record);

// Judges by JudgeTurn. The candidates, by which information is reckoned, are the secrets of the
// vocabulary that agree with the history; a secret that is not in the vocabulary may be asked for
// all the same. The completions of one record share what the record alone says when they stand side
// by side, as those of a group do. INVALID_ARGUMENT: a record that ParseWordleRecord refuses; none
// is judged then.
std::unique_ptr<Verifier> MakeWordleVerifier(Vocabulary vocabulary, WordleRewardOptions options);

}  // namespace espalier
