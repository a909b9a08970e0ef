// OpenAiServer: answers requests in OpenAI's form from a model that generates: chat completions,
// completions, models; whole or as server-sent events. Used by worker/serve_verb.cc. Handle: any
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "worker/chat/chat_template.h"
#include "worker/serve/generation_service.h"
#include "worker/serve/http_server.h"
#include "worker/serve/openai_answer.h"
#include "worker/serve/openai_request.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

class OpenAiServer {
 public:
  struct Options {
    std::string model;  // its name
    int64_t positions;  // of a prompt and its answer, at most
    std::vector<int32_t> stop_ids;
    uint64_t seed;  // of requests that name none, which each get one of their own
  };
  // `service`, `tokenizer` and `clock` must outlive it. Without a template chats are refused.
  OpenAiServer(GenerationService& service, const Tokenizer& tokenizer,
               absl::StatusOr<ChatTemplate> chat, Options options, Clock& clock)
      : service_(service),
        tokenizer_(tokenizer),
        chat_(std::move(chat)),
        options_(std::move(options)),
        clock_(clock),
        started_(absl::ToUnixSeconds(clock.Now())) {}

  HttpResponse Handle(const HttpRequest& request);
  // For what HTTP refuses by itself.
  static HttpResponse Refuse(int status, const std::string& message);

 private:
  HttpResponse Get(const std::string& path) const;
  HttpResponse Post(bool chat, const std::string& body);
  absl::StatusOr<OpenAiRequest> Parse(bool chat, const std::string& body) const;
  // The ids of each prompt.
  absl::StatusOr<std::vector<std::vector<int32_t>>> Prompts(bool chat,
                                                            const OpenAiRequest& request) const;
  absl::StatusOr<GenerationService::Request> Work(bool chat, const OpenAiRequest& request,
                                                  const std::vector<std::vector<int32_t>>& prompts);

  GenerationService& service_;
  const Tokenizer& tokenizer_;
  const absl::StatusOr<ChatTemplate> chat_;
  const Options options_;
  Clock& clock_;
  const int64_t started_;
  std::atomic<uint64_t> asked_ = 0;
};

}  // namespace espalier
