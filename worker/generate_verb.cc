#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/chat/chat_template.h"
#include "worker/generation/batch_generator.h"
#include "worker/generation/recursive_generation.h"
#include "worker/generation/text_stream.h"
#include "worker/open_model.h"
#include "worker/verbs.h"

namespace espalier {
namespace {

void Print(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

absl::StatusOr<std::vector<int32_t>> PromptIds(const GenerateCommand& command,
                                               const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  if (!command.chat) {
    ASSIGN_OR_RETURN(ids, tokenizer.EncodePrompt(command.prompt));
    if (ids.empty()) ids.push_back(tokenizer.end_of_text());  // begins a document
    return ids;
  }
  ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplateOf(tokenizer));
  ASSIGN_OR_RETURN(const std::string text,
                   chat.RenderMessage(command.prompt,
                                      {.add_generation_prompt = true, .now = RealClock().Now()}));
  RETURN_IF_ERROR(tokenizer.Encode(text, ids, {.special_tokens = true}));
  return ids;
}

// A puzzle has an answer of as many tokens, which is printed alone.
absl::Status PrintAnswer(const GenerateCommand& command, const OpenedModel& opened) {
  std::vector<int32_t> puzzle;
  RETURN_IF_ERROR(opened.tokenizer->Encode(command.prompt, puzzle, {}));
  ASSIGN_OR_RETURN(const std::vector<int32_t> answer,
                   Answer(*opened.recursive, puzzle, opened.tokenizer->end_of_text()));
  ASSIGN_OR_RETURN(const std::string text, opened.tokenizer->DecodeText(answer));
  Print(text);
  Print("\n");
  return absl::OkStatus();
}

// No more new tokens than the model has positions for behind the prompt.
void FitRoom(const DecoderConfig& config, Sequence& sequence) {
  const int64_t room =
      config.max_position_embeddings - static_cast<int64_t>(sequence.prompt.size());
  if (room > 0) sequence.max_new_tokens = std::min(sequence.max_new_tokens, room);
}

absl::StatusOr<std::vector<int32_t>> Continue(const OpenedModel& opened, Sequence sequence) {
  if (opened.recursive != nullptr) return Generate(*opened.recursive, std::move(sequence));
  return Generate(*opened.decoder, std::move(sequence));
}

}  // namespace

absl::Status RunGenerate(GenerateCommand command) {
  Sequence& sequence = command.sequence;
  if (command.max_tokens) sequence.max_new_tokens = *command.max_tokens;
  RETURN_IF_ERROR(CheckSequenceOptions(sequence));
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(command.place));
  if (opened.recursive != nullptr && !opened.recursive->recursion().causal) {
    return PrintAnswer(command, opened);
  }
  ASSIGN_OR_RETURN(sequence.prompt, PromptIds(command, *opened.tokenizer));
  if (!command.max_tokens) FitRoom(opened.config(), sequence);
  sequence.stop_ids = opened.stop_ids;
  TextStream text(*opened.tokenizer, command.stop);
  if (!command.prompt.empty() && !command.chat) text.Continue();
  sequence.on_token = [&](int32_t id) {
    Print(text.Append(id));
    return !text.stopped();
  };
  if (!command.chat) Print(command.prompt);
  const absl::Status status = Continue(opened, std::move(sequence)).status();
  Print(text.Finish());
  Print("\n");
  return status;
}

}  // namespace espalier
