#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "common/platform/platform.h"
#include "worker/chat/chat_template.h"
#include "worker/kernels/parallel.h"
#include "worker/model/decoder.h"
#include "worker/model/pretrained.h"
#include "worker/state/checkpoint_store.h"
#include "worker/tensor/device.h"
#include "worker/tokenizer/open_tokenizer.h"
#include "worker/tokenizer/stream_decoder.h"
#include "worker/verbs.h"

namespace espalier {
namespace {

void Print(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::vector<int32_t> StopIds(const DecoderConfig& config, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids(config.eos_token_ids.begin(), config.eos_token_ids.end());
  ids.push_back(tokenizer.end_of_text());
  return ids;
}

// INVALID_ARGUMENT, with what would do, for what is no model folder.
absl::Status CheckModelFolder(const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(folder);
  const std::string seen = names.ok() ? "it holds no config.json and no checkpoint (step-...)"
                                      : std::string(names.status().message());
  const bool model =
      names.ok() && std::find(names->begin(), names->end(), "config.json") != names->end();
  if (model) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no model in ", folder, ": ", seen,
                   "; give a checkpoint, a folder of checkpoints, or a folder of a model in the "
                   "Hugging Face layout"));
}

// A folder of checkpoints stands for the newest of them that is whole; a checkpoint is verified.
absl::StatusOr<std::string> ModelFolder(const std::string& folder) {
  const CheckpointStore store(PosixFileSystem(), {.directory = folder});
  const absl::StatusOr<FoundCheckpoint> found = store.FindNewest();
  if (!found.ok() || (!found->newest && found->rejected.empty())) {
    RETURN_IF_ERROR(CheckModelFolder(folder));
    RETURN_IF_ERROR(CheckIfCheckpoint(PosixFileSystem(), folder));
    return folder;
  }
  for (const RejectedCheckpoint& rejected : found->rejected) {
    LogWarning(absl::StrCat("passed over ", rejected.folder, ": ", rejected.reason.message()));
  }
  if (!found->newest) return found->rejected.front().reason;
  LogInfo(absl::StrCat(folder, " holds checkpoints; taking ", found->newest->folder()));
  return found->newest->folder();
}

// The text that the model is given when the prompt is what somebody says to it.
absl::StatusOr<std::string> Conversation(const std::string& message, const Tokenizer& tokenizer) {
  absl::StatusOr<ChatTemplate> chat = ChatTemplate::FromTokenizerConfig(tokenizer.ConfigJson());
  if (absl::IsNotFound(chat.status()) && tokenizer.IdOf("<|im_start|>")) {
    chat = ChatTemplate::ChatMl();
  }
  if (!chat.ok()) {
    return absl::Status(chat.status().code(),
                        absl::StrCat("--chat: ", chat.status().message(),
                                     "; without --chat the model continues the prompt"));
  }
  return chat->RenderMessage(message, {.add_generation_prompt = true, .now = RealClock().Now()});
}

absl::StatusOr<std::vector<int32_t>> PromptIds(const GenerateCommand& command,
                                               const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  if (command.chat) {
    ASSIGN_OR_RETURN(const std::string text, Conversation(command.prompt, tokenizer));
    RETURN_IF_ERROR(tokenizer.Encode(text, ids, {.special_tokens = true}));
  } else {
    RETURN_IF_ERROR(tokenizer.Encode(command.prompt, ids, {.frame = true}));
  }
  return ids;
}

}  // namespace

absl::Status RunGenerate(GenerateCommand command) {
  RETURN_IF_ERROR(CheckGenerateOptions(command.options));
  RETURN_IF_ERROR(SetComputeThreads(command.threads, /*workers_here=*/1));
  cpu::OnEachThread(MarkComputeThread);
  ASSIGN_OR_RETURN(command.folder, ModelFolder(command.folder));
  ASSIGN_OR_RETURN(const SelectedDevice device, SelectDevice({.name = command.device}));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(command.folder));
  ASSIGN_OR_RETURN(const PretrainedModel model,
                   LoadPretrained(command.folder, {.device = device.device}));
  const Decoder decoder(model.config, model.parameters);

  ASSIGN_OR_RETURN(std::vector<int32_t> prompt, PromptIds(command, *tokenizer));
  if (prompt.empty()) prompt.push_back(tokenizer->end_of_text());  // begins a document
  command.options.stop_ids = StopIds(model.config, *tokenizer);
  StreamDecoder text_of(*tokenizer);
  if (!command.prompt.empty() && !command.chat) text_of.Continue();
  command.options.on_token = [&](int32_t id) {
    // A model may have ids that its tokenizer has no token for.
    if (const absl::StatusOr<std::string> text = text_of.Append(id); text.ok()) Print(*text);
    return true;
  };
  if (!command.chat) Print(command.prompt);
  const absl::Status status = Generate(decoder, prompt, command.options).status();
  Print(text_of.Finish());
  Print("\n");
  return status;
}

}  // namespace espalier
