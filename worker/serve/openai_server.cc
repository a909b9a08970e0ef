#include "worker/serve/openai_server.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

HttpResponse From(OpenAiError error) {
  HttpResponse response{.status = error.http_status, .body = std::move(error.body)};
  if (error.http_status == 429 || error.http_status == 503) response.retry_after_seconds = 1;
  return response;
}
HttpResponse From(const absl::Status& status) { return From(ErrorOf(status)); }

const char* FinishOf(SequenceEnd end) {
  switch (end) {
    case SequenceEnd::kStopped:
      return "stop";
    case SequenceEnd::kLength:
    case SequenceEnd::kCancelled:
    case SequenceEnd::kFailed:
      return "length";
  }
  return "length";
}

std::string Event(const std::string& data) { return absl::StrCat("data: ", data, "\n\n"); }

// An answer whose pieces are being made. Nobody wants what is left when it goes.
class Pieces {
 public:
  Pieces(AnswerHead head, std::shared_ptr<Answer> answer, int64_t choices, TokenUsage usage)
      : head_(std::move(head)), answer_(std::move(answer)), choices_(choices), usage_(usage) {}
  ~Pieces() { answer_->Abandon(); }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  // Waits until something is there. An error has a status of HTTP then, later none.
  absl::Status Begin() {
    while (!first_) {
      ASSIGN_OR_RETURN(first_, answer_->Next(kPatience));
    }
    return absl::OkStatus();
  }

  // Sends all at once, when it is complete. False: it was not.
  bool Whole(const HttpSend& send) {
    std::vector<AnsweredChoice> choices(static_cast<size_t>(choices_));
    for (int64_t left = choices_; left > 0;) {
      const absl::StatusOr<Answer::Piece> piece = Next(send);
      if (!piece.ok()) return false;
      AnsweredChoice& choice = choices[static_cast<size_t>(piece->choice)];
      choice.text += piece->text;
      if (!piece->end) continue;
      choice.finish = FinishOf(*piece->end);
      usage_.completion += piece->tokens;
      --left;
    }
    return send(WholeAnswer(head_, choices, usage_));
  }

  bool Stream(const HttpSend& send, bool with_usage) {
    for (int64_t choice = 0; head_.chat && choice < choices_; ++choice) {
      if (!send(Event(RoleChunk(head_, choice)))) return false;
    }
    for (int64_t left = choices_; left > 0;) {
      const absl::StatusOr<Answer::Piece> piece = Next(send);
      if (absl::IsCancelled(piece.status())) return false;
      // The status of HTTP has been sent.
      if (!piece.ok()) return send(Event(ErrorOf(piece.status()).body));
      const auto text = [&](absl::string_view finish) {
        return Event(TextChunk(head_, piece->choice, finish.empty() ? piece->text : "", finish));
      };
      if (!piece->text.empty() && !send(text(""))) return false;
      if (!piece->end) continue;
      if (!send(text(FinishOf(*piece->end)))) return false;
      usage_.completion += piece->tokens;
      --left;
    }
    if (with_usage && !send(Event(UsageChunk(head_, usage_)))) return false;
    return send(Event("[DONE]"));
  }

 private:
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  // CANCELLED where nobody reads any more.
  absl::StatusOr<Answer::Piece> Next(const HttpSend& send) {
    std::optional<Answer::Piece> piece = std::exchange(first_, std::nullopt);
    while (!piece) {
      ASSIGN_OR_RETURN(piece, answer_->Next(kPatience));
      if (!piece && !send("")) return absl::CancelledError("nobody reads");
    }
    return *std::move(piece);
  }

  const AnswerHead head_;
  const std::shared_ptr<Answer> answer_;
  const int64_t choices_;
  TokenUsage usage_;
  std::optional<Answer::Piece> first_;  // that Begin saw
};

}  // namespace

HttpResponse OpenAiServer::Refuse(int status, const std::string& message) {
  return From(ErrorOf(status, message));
}

HttpResponse OpenAiServer::Handle(const HttpRequest& request) {
  if (request.method == "GET") return Get(request.path);
  return Post(request.path == "/v1/chat/completions", request.body);
}

HttpResponse OpenAiServer::Get(const std::string& path) const {
  if (path == "/health") return {.body = "{\"status\":\"ok\"}"};
  if (path == "/v1/models") return {.body = ModelList(options_.model, started_)};
  absl::string_view name = path;
  if (!absl::ConsumePrefix(&name, "/v1/models/")) return Refuse(404, "no such place");
  if (name == options_.model) return {.body = ModelEntry(options_.model, started_)};
  return From(ErrorOf(404, absl::StrCat("no model of that name; there is '", options_.model, "'"),
                      "model_not_found"));
}

absl::StatusOr<OpenAiRequest> OpenAiServer::Parse(bool chat, const std::string& body) const {
  ASSIGN_OR_RETURN(OpenAiRequest request,
                   chat ? ParseChatRequest(body) : ParseCompletionRequest(body));
  if (request.model.empty() || request.model == options_.model) return request;
  return absl::NotFoundError(absl::StrCat("'model' is '", request.model, "'; this server has '",
                                          options_.model, "', or leave it out"));
}

absl::StatusOr<std::vector<std::vector<int32_t>>> OpenAiServer::Prompts(
    bool chat, const OpenAiRequest& request) const {
  std::vector<std::vector<int32_t>> prompts;
  if (chat) {
    RETURN_IF_ERROR(chat_.status());
    ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                     ConversationIds(*chat_, tokenizer_, request.messages, clock_.Now()));
    prompts.push_back(std::move(ids));
    return prompts;
  }
  for (const CompletionPrompt& prompt : request.prompts) {
    if (const auto* given = std::get_if<std::vector<int32_t>>(&prompt)) {
      prompts.push_back(*given);
      continue;
    }
    ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                     tokenizer_.EncodePrompt(std::get<std::string>(prompt)));
    if (ids.empty()) ids.push_back(tokenizer_.end_of_text());  // begins a document
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

absl::StatusOr<GenerationService::Request> OpenAiServer::Work(
    bool chat, const OpenAiRequest& request, const std::vector<std::vector<int32_t>>& prompts) {
  const uint64_t seed = request.seed ? *request.seed : SampleSeed(options_.seed, ++asked_, 0);
  GenerationService::Request work;
  work.stops = request.stop;
  // An empty prompt begins a document.
  work.continues = !chat && prompts.front() != std::vector{tokenizer_.end_of_text()};
  const int64_t all = request.choices * static_cast<int64_t>(prompts.size());
  if (all > kMostChoices) {
    return absl::InvalidArgumentError(
        absl::StrCat(prompts.size(), " prompts with 'n' ", request.choices, " are ", all,
                     " answers; allowed: ", kMostChoices, " a request"));
  }
  for (size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    const int64_t room = options_.positions - static_cast<int64_t>(prompts[prompt].size());
    if (room < 1) {
      return absl::InvalidArgumentError(absl::StrCat("the prompt has ", prompts[prompt].size(),
                                                     " tokens, and prompt and answer together may "
                                                     "have ",
                                                     options_.positions, "; shorten it"));
    }
    for (int64_t choice = 0; choice < request.choices; ++choice) {
      Sequence sequence;
      sequence.prompt = prompts[prompt];
      sequence.max_new_tokens = request.max_tokens.value_or(room);
      sequence.sample = request.sample;
      sequence.seed = SampleSeed(seed, prompt, static_cast<uint64_t>(choice));
      sequence.stop_ids = options_.stop_ids;
      work.sequences.push_back(std::move(sequence));
    }
  }
  return work;
}

HttpResponse OpenAiServer::Post(bool chat, const std::string& body) {
  const absl::StatusOr<OpenAiRequest> request = Parse(chat, body);
  if (absl::IsNotFound(request.status())) {
    return From(ErrorOf(404, request.status().message(), "model_not_found"));
  }
  if (!request.ok()) return From(request.status());
  const auto prompts = Prompts(chat, *request);
  if (!prompts.ok()) return From(ErrorOf(400, prompts.status().message()));
  absl::StatusOr<GenerationService::Request> work = Work(chat, *request, *prompts);
  if (!work.ok()) return From(work.status());
  const auto choices = static_cast<int64_t>(work->sequences.size());
  absl::StatusOr<std::shared_ptr<Answer>> answer = service_.Submit(*std::move(work));
  if (!answer.ok()) return From(answer.status());
  const int64_t now = absl::ToUnixSeconds(clock_.Now());
  const uint64_t number = SplitMix64(options_.seed, ++asked_).Next();
  AnswerHead head{chat, absl::StrFormat("%s-%016x", chat ? "chatcmpl" : "cmpl", number),
                  options_.model, now};
  TokenUsage usage;
  for (const std::vector<int32_t>& prompt : *prompts) {
    usage.prompt += static_cast<int64_t>(prompt.size());
  }
  const auto pieces = std::make_shared<Pieces>(std::move(head), *std::move(answer), choices, usage);
  if (!request->stream) {
    if (const absl::Status begun = pieces->Begin(); !begun.ok()) return From(begun);
    return {.stream = [pieces](const HttpSend& send) { return pieces->Whole(send); }};
  }
  return {.content_type = "text/event-stream",
          .stream = [pieces, usage = request->stream_usage](const HttpSend& send) {
            return pieces->Stream(send, usage);
          }};
}

}  // namespace espalier
