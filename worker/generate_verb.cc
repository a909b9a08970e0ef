#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/chat/chat_template.h"
#include "worker/generation/batch_generator.h"
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
    RETURN_IF_ERROR(tokenizer.Encode(command.prompt, ids, {.frame = true}));
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

}  // namespace

absl::Status RunGenerate(GenerateCommand command) {
  Sequence& sequence = command.sequence;
  RETURN_IF_ERROR(CheckSequenceOptions(sequence));
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(command.place));
  ASSIGN_OR_RETURN(sequence.prompt, PromptIds(command, *opened.tokenizer));
  sequence.stop_ids = opened.stop_ids;
  TextStream text(*opened.tokenizer, command.stop);
  if (!command.prompt.empty() && !command.chat) text.Continue();
  sequence.on_token = [&](int32_t id) {
    Print(text.Append(id));
    return !text.stopped();
  };
  if (!command.chat) Print(command.prompt);
  const absl::Status status = Generate(*opened.decoder, std::move(sequence)).status();
  Print(text.Finish());
  Print("\n");
  return status;
}

}  // namespace espalier
