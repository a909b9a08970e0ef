#include "worker/data/row_renderer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "worker/data/bad_rows.h"

namespace espalier {
namespace {

constexpr size_t kWorkBytesMax = size_t{256} << 20;

// Nodes that prepare the same rows on different days get the same tokens. The day is the one that
// Llama's templates fall back on.
absl::Time TemplateTime() {
  return absl::FromCivil(absl::CivilDay(2024, 7, 26), absl::UTCTimeZone());
}

using Json = nlohmann::ordered_json;
using Ids = absl::Span<const int32_t>;

bool StartsWith(Ids ids, Ids prefix) {
  return ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
}

// What a template says against a conversation is said against the row.
template <typename T>
absl::StatusOr<T> OfRow(absl::StatusOr<T> rendered) {
  const bool of_row =
      absl::IsFailedPrecondition(rendered.status()) || absl::IsResourceExhausted(rendered.status());
  if (!of_row) return rendered;
  return absl::InvalidArgumentError(
      absl::StrCat("the chat template refuses it: ", rendered.status().message()));
}

// The text of a message's content: its own, or that of its parts.
std::string TextOf(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end()) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return "";
  std::string text;
  for (const Json& part : *content) {
    const auto found = part.find("text");
    if (found != part.end() && found->is_string()) text += found->get_ref<const std::string&>();
  }
  return text;
}

// Whether the template writes parts of a content as their text; others write them as Python does.
bool WritesParts(const ChatTemplate& chat) {
  Json variables;
  variables["messages"][0]["role"] = "user";
  variables["messages"][0]["content"][0] = {{"type", "text"}, {"text", "of a part"}};
  const auto written = chat.Render(variables, {.now = TemplateTime()});
  return written.ok() && absl::StrContains(*written, "of a part") &&
         !absl::StrContains(*written, "'text'") && !absl::StrContains(*written, "\"text\"");
}

// FAILED_PRECONDITION for an answer in which there is nothing to learn but to say nothing.
absl::Status CheckAnswers(const Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const auto says = [&](const char* key) {
      const auto found = message.find(key);
      return found != message.end() && !found->empty() && *found != "";
    };
    const auto role = message.find("role");
    const bool answer = role != message.end() && *role == "assistant";
    if (!answer || !TextOf(message).empty()) continue;
    if (says("tool_calls") || says("reasoning_content")) continue;
    return EmptyRow(absl::StrCat("message ", i + 1, ", an answer of the assistant, is empty"));
  }
  return absl::OkStatus();
}

// All before an answer is rendered and encoded again for it.
absl::Status CheckWork(const Json& messages) {
  size_t bytes = 0;
  for (const Json& message : messages) bytes += TextOf(message).size();
  if (bytes * messages.size() <= kWorkBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the conversation has ", messages.size(), " messages of ", bytes,
      " bytes; to find its answers, their product may be ", kWorkBytesMax, " at most"));
}

// Alpaca's own text for an instruction, where a tokenizer has no chat template.
std::string AlpacaPrompt(const InstructionRow& row) {
  const bool input = !row.input.empty();
  return absl::StrCat(
      row.system.empty()
          ? absl::StrCat("Below is an instruction that describes a task",
                         input ? ", paired with an input that provides further context" : "",
                         ". Write a response that appropriately completes the request.")
          : row.system,
      "\n\n### Instruction:\n", row.instruction, input ? "\n\n### Input:\n" : "", row.input,
      "\n\n### Response:\n");
}

// What a text is encoded behind that follows these ids.
TextStart Behind(Ids ids, const Tokenizer& tokenizer) {
  if (ids.empty()) return TextStart::kBegins;
  return tokenizer.IsSpecial(ids.back()) ? TextStart::kAfterToken : TextStart::kContinues;
}

// How many stretches that count two rows have in common, with all that is before them.
size_t SharedRuns(const RenderedRow& a, const RenderedRow& b) {
  size_t runs = 0;
  while (runs < std::min(a.counted.size(), b.counted.size()) &&
         a.counted[runs] == b.counted[runs] &&
         StartsWith(a.ids, Ids(b.ids).first(static_cast<size_t>(b.counted[runs].end)))) {
    ++runs;
  }
  return runs;
}

}  // namespace

absl::StatusOr<RowRenderer> RowRenderer::Create(const Tokenizer& tokenizer, Options options) {
  RowRenderer renderer(tokenizer, options);
  absl::StatusOr<ChatTemplate> chat = ChatTemplate::FromTokenizerConfig(tokenizer.ConfigJson());
  if (chat.ok()) {
    renderer.chat_ = *std::move(chat);
  } else if (!absl::IsNotFound(chat.status())) {
    return absl::Status(chat.status().code(),
                        absl::StrCat("the tokenizer's chat template: ", chat.status().message()));
  } else if (tokenizer.IdOf("<|im_start|>")) {
    renderer.chat_ = ChatTemplate::ChatMl();
  }
  renderer.writes_parts_ = renderer.chat_ && WritesParts(*renderer.chat_);
  ASSIGN_OR_RETURN(TextFrame frame, tokenizer.Frame());
  renderer.before_text_ = std::move(frame.before);
  return renderer;
}

absl::StatusOr<RenderedRow> RowRenderer::Render(const FineTuneRow& row) const {
  absl::StatusOr<RenderedRow> rendered = absl::InternalError("a row of no kind");
  if (const auto* text = std::get_if<TextRow>(&row)) rendered = RenderText(text->text);
  if (const auto* pair = std::get_if<PairRow>(&row)) {
    rendered = RenderPair(pair->prompt, pair->completion);
  }
  if (const auto* instruction = std::get_if<InstructionRow>(&row)) {
    rendered = RenderInstruction(*instruction);
  }
  if (const auto* chat = std::get_if<ChatRow>(&row)) rendered = RenderChat(chat->variables);
  if (const auto* prompt = std::get_if<PromptRow>(&row)) return RenderPrompt(*prompt);
  if (const auto* pair = std::get_if<PreferenceRow>(&row)) return RenderPreference(*pair);
  if (rendered.ok()) RETURN_IF_ERROR(Fit(*rendered));
  return rendered;
}

absl::StatusOr<RenderedRow> RowRenderer::RenderText(const std::string& text) const {
  RenderedRow row;
  ASSIGN_OR_RETURN(row.ids, tokenizer_.EncodePrompt(text));
  if (row.ids.size() == before_text_.size()) return EmptyRow("the text has no token");
  TokenRun all{0, static_cast<int64_t>(row.ids.size())};
  DropSpaceBehindEnd(all, row.ids);
  const bool ended = row.ids[static_cast<size_t>(all.end) - 1] == tokenizer_.end_of_text();
  if (!ended) row.ids.push_back(tokenizer_.end_of_text());
  row.counted.push_back({0, static_cast<int64_t>(row.ids.size())});
  row.texts.push_back(text);
  return row;
}

absl::StatusOr<RenderedRow> RowRenderer::RenderPair(const std::string& prompt,
                                                    const std::string& completion) const {
  RenderedRow row{.ids = before_text_};
  RETURN_IF_ERROR(tokenizer_.Encode(prompt, row.ids));
  const auto asked = static_cast<int64_t>(row.ids.size());
  RETURN_IF_ERROR(tokenizer_.Encode(
      completion, row.ids,
      {.start = prompt.empty() ? TextStart::kBegins : Behind(row.ids, tokenizer_)}));
  row.ids.push_back(tokenizer_.end_of_text());
  row.counted.push_back(
      {options_.loss == LossOn::kAll ? 0 : asked, static_cast<int64_t>(row.ids.size())});
  row.texts = {prompt, completion};
  return row;
}

// Never cut: what is asked stands at its end.
absl::StatusOr<RenderedRow> RowRenderer::RenderPrompt(const PromptRow& prompt) const {
  RenderedRow row;
  ASSIGN_OR_RETURN(row.ids, tokenizer_.EncodePrompt(prompt.prompt));
  if (row.ids.size() == before_text_.size()) return EmptyRow("the prompt has no token");
  const auto tokens = static_cast<int64_t>(row.ids.size());
  if (options_.max_tokens > 0 && tokens > options_.max_tokens) {
    return TooLongRow(absl::StrCat("the prompt has ", tokens, " tokens, more than --max-tokens ",
                                   options_.max_tokens));
  }
  row.texts = {prompt.prompt, prompt.record};
  row.record = prompt.record;
  return row;
}

// Answers earlier in the conversation, which the two have in common, are what both are asked. Never
// cut: what is compared stands at the ends.
absl::StatusOr<RenderedRow> RowRenderer::RenderPreference(const PreferenceRow& pair) const {
  const auto render = [this](const std::variant<PairRow, ChatRow>& answered) {
    const auto* const texts = std::get_if<PairRow>(&answered);
    return texts != nullptr ? RenderPair(texts->prompt, texts->completion)
                            : RenderChat(std::get<ChatRow>(answered).variables);
  };
  ASSIGN_OR_RETURN(const RenderedRow chosen, render(pair.chosen));
  ASSIGN_OR_RETURN(const RenderedRow rejected, render(pair.rejected));
  const size_t shared = SharedRuns(chosen, rejected);
  if (shared == chosen.counted.size() || shared == rejected.counted.size()) {
    return EmptyRow("the chosen answer and the rejected one are the same, or one is missing");
  }
  RenderedRow row;
  for (const RenderedRow* one : {&chosen, &rejected}) {
    const TokenRun answer{one->counted[shared].begin, one->counted.back().end};
    if (answer.begin == 0) row.ids.push_back(tokenizer_.end_of_text());
    const auto at = static_cast<int64_t>(row.ids.size());
    row.ids.insert(row.ids.end(), one->ids.begin(), one->ids.begin() + answer.end);
    row.counted.push_back({at + answer.begin, at + answer.end});
    row.texts.insert(row.texts.end(), one->texts.begin(), one->texts.end());
  }
  const auto tokens = static_cast<int64_t>(row.ids.size());
  if (options_.max_tokens == 0 || tokens <= options_.max_tokens) return row;
  return TooLongRow(absl::StrCat("the pair has ", tokens, " tokens, more than --max-tokens ",
                                 options_.max_tokens));
}

absl::StatusOr<RenderedRow> RowRenderer::RenderInstruction(const InstructionRow& row) const {
  if (!chat_) return RenderPair(AlpacaPrompt(row), row.output);
  auto messages = Json::array();
  if (!row.system.empty()) messages.push_back({{"role", "system"}, {"content", row.system}});
  const bool both = !row.instruction.empty() && !row.input.empty();
  messages.push_back({{"role", "user"},
                      {"content", absl::StrCat(row.instruction, both ? "\n\n" : "", row.input)}});
  messages.push_back({{"role", "assistant"}, {"content", row.output}});
  return RenderChat({{"messages", std::move(messages)}});
}

absl::StatusOr<RenderedRow> RowRenderer::RenderChat(nlohmann::ordered_json variables) const {
  if (!chat_) {
    return absl::UnimplementedError(
        "conversations are rendered by the tokenizer's chat template, and it has none; prepare "
        "with --tokenizer and the folder of a model that has one (chat_template in "
        "tokenizer_config.json, or chat_template.jinja), or give prompts with completions");
  }
  for (Json& message : variables["messages"]) {
    if (writes_parts_ || !message.contains("content") || !message["content"].is_array()) continue;
    message["content"] = TextOf(message);
  }
  MarkedText marked;
  if (options_.loss == LossOn::kAll) {
    ASSIGN_OR_RETURN(marked.text, OfRow(chat_->Render(variables, {.now = TemplateTime()})));
    marked.answers.push_back({0, marked.text.size()});
  } else {
    RETURN_IF_ERROR(CheckAnswers(variables["messages"]));
    RETURN_IF_ERROR(CheckWork(variables["messages"]));
    ASSIGN_OR_RETURN(marked, OfRow(chat_->RenderMarked(variables, TemplateTime())));
  }
  RenderedRow row;
  RETURN_IF_ERROR(AddMarked(marked, row));
  row.texts.push_back(std::move(marked.text));
  if (row.counted.empty()) return EmptyRow("the conversation has no answer of the assistant");
  return row;
}

// The tokens of a text are those of the whole of it, as far as none lies across a border: there
// those of what is before the border end, as they do when a model is asked.
absl::Status RowRenderer::AddMarked(const MarkedText& marked, RenderedRow& row) const {
  constexpr EncodeOptions kSpecial{.special_tokens = true};
  const absl::string_view text = marked.text;
  RETURN_IF_ERROR(tokenizer_.Encode(text, row.ids, kSpecial));
  size_t at = 0, at_ids = 0;  // the border before, in the text and among the tokens
  const auto border = [&](size_t next) -> absl::StatusOr<int64_t> {
    if (next == 0) return 0;
    if (next == text.size()) return static_cast<int64_t>(row.ids.size());
    std::vector<int32_t> before;
    RETURN_IF_ERROR(tokenizer_.Encode(text.substr(0, next), before, kSpecial));
    const bool goes_on = StartsWith(before, Ids(row.ids).first(at_ids));
    if (!goes_on) {
      before.assign(row.ids.begin(), row.ids.begin() + static_cast<std::ptrdiff_t>(at_ids));
      RETURN_IF_ERROR(
          tokenizer_.Encode(text.substr(at, next - at), before,
                            {.special_tokens = true, .start = Behind(before, tokenizer_)}));
    }
    at = next;
    at_ids = before.size();
    if (!StartsWith(row.ids, before)) {
      row.ids = std::move(before);
      RETURN_IF_ERROR(
          tokenizer_.Encode(text.substr(next), row.ids,
                            {.special_tokens = true, .start = Behind(row.ids, tokenizer_)}));
    }
    return static_cast<int64_t>(at_ids);
  };
  for (const TextSpan& answer : marked.answers) {
    if (answer.begin < at || answer.end <= answer.begin) continue;  // no answer is in another
    TokenRun run;
    ASSIGN_OR_RETURN(run.begin, border(answer.begin));
    ASSIGN_OR_RETURN(run.end, border(answer.end));
    if (options_.loss == LossOn::kCompletions) DropSpaceBehindEnd(run, row.ids);
    if (run.begin < run.end) row.counted.push_back(run);
  }
  return absl::OkStatus();
}

// The line break that a template writes behind <|im_end|> is not what a model says.
void RowRenderer::DropSpaceBehindEnd(TokenRun& run, Ids ids) const {
  int64_t end = run.end;
  for (; end > run.begin; --end) {
    const int32_t id = ids[static_cast<size_t>(end) - 1];
    if (tokenizer_.IsSpecial(id) || id == tokenizer_.end_of_text()) break;
    const absl::StatusOr<absl::string_view> piece = tokenizer_.Piece(id);
    if (!piece.ok() || !absl::StripAsciiWhitespace(*piece).empty()) return;
  }
  if (end > run.begin) run.end = end;
}

absl::Status RowRenderer::Fit(RenderedRow& row) const {
  const auto tokens = static_cast<int64_t>(row.ids.size());
  if (options_.max_tokens > 0 && tokens > options_.max_tokens) {
    if (options_.long_rows != LongRows::kCut) {
      return TooLongRow(absl::StrCat("the row has ", tokens, " tokens, more than --max-tokens ",
                                     options_.max_tokens));
    }
    row.cut = true;
    row.ids.resize(static_cast<size_t>(options_.max_tokens));
    while (!row.counted.empty() && row.counted.back().begin >= options_.max_tokens) {
      row.counted.pop_back();
    }
    if (!row.counted.empty()) {
      row.counted.back().end = std::min(row.counted.back().end, options_.max_tokens);
    }
  }
  // The first token has none before it that it could be learnt from.
  if (!row.counted.empty() && row.counted.back().end > 1) return absl::OkStatus();
  return row.cut ? TooLongRow(absl::StrCat("its answers lie behind its first ", options_.max_tokens,
                                           " tokens (--max-tokens)"))
                 : EmptyRow("it has no token to learn that follows another one");
}

}  // namespace espalier
