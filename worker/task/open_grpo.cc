// The task `grpo` of a job: its prompts, what samples and judges them, and the games that
// evaluations play.
#include <memory>
#include <string>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/data/row_renderer.h"
#include "worker/rollout/job_rollouts.h"
#include "worker/task/grpo.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

// Those of a split; none where it has none.
absl::StatusOr<std::vector<RolloutPrompt>> PromptsOf(const Dataset& dataset,
                                                     absl::string_view split) {
  const absl::StatusOr<std::shared_ptr<const PromptTable>> table = dataset.Prompts(split);
  const bool none = absl::IsNotFound(table.status()) || absl::IsFailedPrecondition(table.status());
  std::vector<RolloutPrompt> prompts;
  if (none && split == kValidationSplit) return prompts;
  RETURN_IF_ERROR(table.status());
  for (int64_t i = 0; i < (*table)->size(); ++i) {
    prompts.push_back({i, (*table)->ids(i), (*table)->record(i)});
  }
  return prompts;
}

// As `data prepare` gives the ids of a prompt.
EncodeText PromptEncoder(std::shared_ptr<const Tokenizer> tokenizer) {
  return [tokenizer](const std::string& text) -> absl::StatusOr<std::vector<int32_t>> {
    ASSIGN_OR_RETURN(const RowRenderer renderer, RowRenderer::Create(*tokenizer, {}));
    ASSIGN_OR_RETURN(RenderedRow row, renderer.Render(PromptRow{text, "{}"}));
    return std::move(row.ids);
  };
}

absl::StatusOr<std::optional<WordleMatch>> MatchOf(const v1::JobSpec& spec, const Dataset& dataset,
                                                   const std::vector<RolloutPrompt>& prompts,
                                                   const EncodeText& encode) {
  if (spec.evaluate().games() == 0 || prompts.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(const VerifierOptions options,
                   VerifierOptionsOf(spec.train().verifier(), dataset.folder()));
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Load(options.words, options.secrets));
  return MakeWordleMatch(std::move(vocabulary), prompts, spec.evaluate().games(), encode);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Task>> OpenGrpo(const v1::JobSpec& spec, const Dataset& dataset) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, OpenTokenizer(spec.data().path()));
  GrpoPrompts prompts;
  ASSIGN_OR_RETURN(prompts.training, PromptsOf(dataset, kTrainSplit));
  ASSIGN_OR_RETURN(prompts.validation, PromptsOf(dataset, kValidationSplit));
  ASSIGN_OR_RETURN(prompts.games,
                   MatchOf(spec, dataset, prompts.validation, PromptEncoder(tokenizer)));
  const auto open = [tokenizer, spec, data = dataset.folder()](const RankContext& context) {
    return OpenJobRollouts(context, spec, data, *tokenizer);
  };
  return Grpo::Create(spec, std::move(prompts), open);
}

}  // namespace espalier
