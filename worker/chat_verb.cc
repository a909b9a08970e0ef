#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/chat/chat_template.h"
#include "worker/generation/batch_generator.h"
#include "worker/generation/text_stream.h"
#include "worker/open_model.h"
#include "worker/verbs.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

volatile std::sig_atomic_t interrupted = 0;

// Ctrl-C ends an answer; where nothing is being said, the conversation: a line that is being read
// ends with an error then.
void WatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  sigaction(SIGINT, &action, nullptr);
}

void Print(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

class Conversation {
 public:
  Conversation(const ChatCommand& command, const OpenedModel& opened, ChatTemplate chat,
               BatchGenerator batch)
      : command_(command), opened_(opened), chat_(std::move(chat)), batch_(std::move(batch)) {
    Begin();
  }

  void Begin() {
    messages_ = Json::array();
    if (!command_.system.empty()) Say("system", command_.system);
  }

  // Prints what the model answers.
  absl::Status Answer(const std::string& message) {
    const Json before = messages_;  // Fitting may forget some of it
    Say("user", message);
    absl::StatusOr<Sequence> fitting = Fitting();
    if (!fitting.ok()) {  // it was not said
      messages_ = before;
      Print(absl::StrCat("[not taken: ", fitting.status().message(), "]\n"));
      return absl::OkStatus();
    }
    Sequence& sequence = *fitting;
    sequence.seed = SampleSeed(command_.sequence.seed, turn_++, 0);
    std::string answer;
    TextStream text(*opened_.tokenizer, command_.stop);
    const auto show = [&](const std::string& piece) {
      answer += piece;
      Print(piece);
    };
    sequence.on_token = [&](int32_t id) {
      show(text.Append(id));
      return !text.stopped();
    };
    interrupted = 0;
    ASSIGN_OR_RETURN(const int64_t id, batch_.Add(std::move(sequence)));
    SequenceEnd end = SequenceEnd::kStopped;
    while (batch_.busy()) {
      if (interrupted != 0) batch_.Cancel(id);
      ASSIGN_OR_RETURN(const std::vector<Continued> ended, batch_.Turn());
      if (!ended.empty()) end = ended.front().end;
    }
    if (end == SequenceEnd::kFailed) return NotNumbers();
    show(text.Finish());
    Print(interrupted != 0              ? "\n[stopped]\n"
          : end == SequenceEnd::kLength ? "\n[cut short: --max-tokens]\n"
                                        : "\n");
    interrupted = 0;
    Say("assistant", answer);
    return absl::OkStatus();
  }

 private:
  void Say(const char* role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }

  // What has been said, less the oldest exchanges where that is too much for the model.
  absl::StatusOr<Sequence> Fitting() {
    Sequence sequence = command_.sequence;
    sequence.stop_ids = opened_.stop_ids;
    for (;;) {
      ASSIGN_OR_RETURN(sequence.prompt,
                       ConversationIds(chat_, *opened_.tokenizer, messages_, RealClock().Now()));
      const absl::Status fits = batch_.Check(sequence);
      const size_t system = command_.system.empty() ? 0 : 1;
      if (fits.ok() || messages_.size() < system + 3) {
        RETURN_IF_ERROR(fits);
        return sequence;
      }
      const auto oldest = messages_.begin() + static_cast<int64_t>(system);
      messages_.erase(oldest, oldest + 2);
      LogWarning(
          "the conversation is longer than the model's context: its oldest exchange is "
          "forgotten");
    }
  }

  const ChatCommand& command_;
  const OpenedModel& opened_;
  const ChatTemplate chat_;
  BatchGenerator batch_;
  Json messages_;
  uint64_t turn_ = 0;
};

}  // namespace

absl::Status RunChat(ChatCommand command) {
  RETURN_IF_ERROR(CheckSequenceOptions(command.sequence));
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenDecoder(command.place));
  ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplateOf(*opened.tokenizer));
  const int64_t positions = std::min(command.context, opened.config().max_position_embeddings);
  // Half of what there is room for is for what was said.
  int64_t& answer = command.sequence.max_new_tokens;
  answer = std::min(answer, std::max<int64_t>(1, positions / 2));
  ASSIGN_OR_RETURN(BatchGenerator batch,
                   BatchGenerator::Create(*opened.decoder, {.rows = 1, .positions = positions}));
  Conversation conversation(command, opened, std::move(chat), std::move(batch));
  WatchInterrupts();
  if (command.terminal) {
    Print("Say something. /new begins anew, /exit or Ctrl-D ends; Ctrl-C stops an answer.\n");
  }
  for (std::string line;;) {
    if (command.terminal) Print("> ");
    if (!std::getline(std::cin, line)) break;
    const std::string message(absl::StripAsciiWhitespace(line));
    if (message == "/exit") break;
    if (message == "/new") {
      conversation.Begin();
    } else if (!message.empty()) {
      RETURN_IF_ERROR(conversation.Answer(message));
    }
  }
  if (command.terminal) Print("\n");
  return absl::OkStatus();
}

}  // namespace espalier
