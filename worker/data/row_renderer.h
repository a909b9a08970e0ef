// RowRenderer: an example for fine-tuning to its tokens, and which of them count in the loss. Used
// by prepare.h, preparer.h and worker/task. Immutable: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/chat/chat_template.h"
#include "worker/data/fine_tune_row.h"
#include "worker/data/token_manifest.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

enum class LossOn {
  kAll,          // every token
  kCompletions,  // what the assistant says, with the token that ends it
};

enum class LongRows {
  kCut,    // they lose their end, and are counted
  kError,  // the first one ends the preparation
  kSkip,   // they are told, counted and left out
};

struct RenderedRow {
  std::vector<int32_t> ids;
  // Tokens that count in the loss, in order, not empty and apart.
  std::vector<TokenRun> counted;
  // What the row says; equal rows have equal texts.
  std::vector<std::string> texts;
  bool cut = false;         // it has lost its end
  std::string record = {};  // of a prompt, of which nothing counts
};
// Of a preference: prompt and chosen answer, then prompt and rejected answer; two stretches count,
// the answers, and each ends its part. An answer has a token before it.

// Rules (README.md says more):
// * What a conversation is rendered to, a text, and a prompt without a completion may spell special
//   tokens. A prompt with one, a completion and an instruction without a template do not.
// * What the tokenizer puts before every text (Llama's <|begin_of_text|>) is there once: a text
// that
//   spells it already gets no second one, and a template writes its own.
// * No token lies across the border of what counts and what does not.
// * Prompts with completions, instructions without a template, and texts end with the end-of-text
//   token; a conversation ends as its template ends it.
class RowRenderer {
 public:
  struct Options {
    LossOn loss = LossOn::kAll;
    int64_t max_tokens = 0;  // of a row; 0: any number
    LongRows long_rows = LongRows::kCut;
  };
  // With the chat template of the tokenizer, or ChatML's where it knows <|im_start|>. `tokenizer`
  // must outlive this. INVALID_ARGUMENT for a template that cannot be read.
  static absl::StatusOr<RowRenderer> Create(const Tokenizer& tokenizer, Options options);

  // INVALID_ARGUMENT, FAILED_PRECONDITION and OUT_OF_RANGE are of the row (bad_rows.h);
  // UNIMPLEMENTED: the tokenizer has no chat template and the row needs one.
  absl::StatusOr<RenderedRow> Render(const FineTuneRow& row) const;

 private:
  RowRenderer(const Tokenizer& tokenizer, Options options)
      : tokenizer_(tokenizer), options_(options) {}
  absl::StatusOr<RenderedRow> RenderText(const std::string& text) const;
  absl::StatusOr<RenderedRow> RenderPair(const std::string& prompt,
                                         const std::string& completion) const;
  absl::StatusOr<RenderedRow> RenderPrompt(const PromptRow& row) const;
  absl::StatusOr<RenderedRow> RenderPreference(const PreferenceRow& row) const;
  absl::StatusOr<RenderedRow> RenderInstruction(const InstructionRow& row) const;
  absl::StatusOr<RenderedRow> RenderChat(nlohmann::ordered_json variables) const;
  absl::Status AddMarked(const MarkedText& marked, RenderedRow& row) const;
  void DropSpaceBehindEnd(TokenRun& run, absl::Span<const int32_t> ids) const;
  absl::Status Fit(RenderedRow& row) const;

  const Tokenizer& tokenizer_;
  Options options_;
  std::optional<ChatTemplate> chat_;
  bool writes_parts_ = false;  // chat_ takes a content of several parts; else it gets their text
  std::vector<int32_t> before_text_;  // what the tokenizer puts before every text
};

}  // namespace espalier
