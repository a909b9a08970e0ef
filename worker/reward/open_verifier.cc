#include "worker/reward/open_verifier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/reward/answers.h"
#include "worker/reward/word_list.h"
#include "worker/reward/wordle_verifier.h"

namespace espalier {

absl::StatusOr<VerifierKind> ParseVerifierKind(absl::string_view text) {
  if (text == "wordle") return VerifierKind::kWordle;
  if (text == "units") return VerifierKind::kUnits;
  if (text == "arithmetic") return VerifierKind::kArithmetic;
  if (text == "external") return VerifierKind::kExternal;
  return absl::InvalidArgumentError(
      absl::StrCat("there is no verifier '", text,
                   "'; allowed: wordle, units, arithmetic, external (a program of your own)"));
}

absl::StatusOr<std::unique_ptr<Verifier>> OpenVerifier(const VerifierOptions& options) {
  switch (options.kind) {
    case VerifierKind::kWordle: {
      if (options.words.empty()) {
        return absl::InvalidArgumentError(
            "the verifier of Wordle has no file of words; `espalier data make wordle` writes one, "
            "words.txt");
      }
      ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Load(options.words, options.secrets));
      return MakeWordleVerifier(std::move(vocabulary), options.wordle);
    }
    case VerifierKind::kUnits:
      return MakeAnswerVerifier(AnswerKind::kMeasure);
    case VerifierKind::kArithmetic:
      return MakeAnswerVerifier(AnswerKind::kWhole);
    case VerifierKind::kExternal:
      return StartExternalVerifier(options.external);
  }
  return absl::InternalError("a verifier of no kind");
}

}  // namespace espalier
