// ServedModel: a tiny model behind an OpenAiServer, with the thread that computes. Used by
// fuzz_test.cc, generation_service_test.cc and openai_server_test.cc. One thread.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "tests/worker/support/tiny_model.h"
#include "worker/serve/openai_server.h"

namespace espalier {

// Ids are bytes.
inline DecoderConfig ByteModelConfig(int64_t vocab_size = 257) {
  DecoderConfig config = TinyModelConfig();
  config.vocab_size = vocab_size;
  config.max_position_embeddings = 256;
  return config;
}

class ServedModel {
 public:
  static GenerationService::Options DefaultOptions() {
    return {.batch = {.rows = 4, .positions = 256}, .most_waiting = 60};
  }
  explicit ServedModel(GenerationService::Options options = DefaultOptions(),
                       std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer())
      : model_(ByteModelConfig(tokenizer->vocab_size())),
        tokenizer_(std::move(tokenizer)),
        service_(*GenerationService::Create(*model_.decoder, *tokenizer_, options)),
        server_(*service_, *tokenizer_,
                ChatTemplate::Parse("{% for m in messages %}{{ m.role }}: {{ m.content }}\n"
                                    "{% endfor %}assistant:"),
                {.model = "tiny", .positions = options.batch.positions, .stop_ids = {}, .seed = 1},
                RealClock()) {
    thread_ = std::thread([this] { result_ = service_->Run(); });
  }
  ~ServedModel() { EXPECT_TRUE(Stop().ok()); }

  absl::Status Stop() {
    service_->Stop();
    if (thread_.joinable()) thread_.join();
    return result_;
  }

  OpenAiServer& server() { return server_; }
  GenerationService& service() { return *service_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const Decoder& decoder() const { return *model_.decoder; }
  // Values that are no numbers from here on. Not while it computes.
  void Damage() {
    torch::NoGradGuard no_grad;
    model_.parameters.Get("model.norm.weight").fill_(std::nan(""));
  }

 private:
  TinyModel model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GenerationService> service_;
  OpenAiServer server_;
  absl::Status result_;
  std::thread thread_;
};

// The body of an answer, also of one that is sent when it is complete.
inline std::string BodyOf(const HttpResponse& response) {
  if (!response.stream) return response.body;
  std::string all;
  EXPECT_TRUE(response.stream([&](const std::string& bytes) {
    all += bytes;
    return true;
  }));
  return all;
}

}  // namespace espalier
