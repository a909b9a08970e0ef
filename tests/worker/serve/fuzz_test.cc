// Damaged bodies of requests: an answer or an error in OpenAI's form, and never a crash. For
// longer: ESPALIER_FUZZ_SECONDS=600 build-asan/tests/worker_serve_tests --gtest_filter='Fuzz*'
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/worker/serve/served_model.h"
#include "tests/worker/support/mutations.h"

namespace espalier {
namespace {

TEST(Fuzz, DamagedRequests) {
  const std::vector<std::string> bodies = {
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content":
          [{"type": "text", "text": "é \ud83d\ude80"}]}], "max_tokens": 2, "temperature": 0.7,
          "top_p": 0.9, "n": 2, "stop": ["a", "bc"], "seed": 3, "stream": false})",
      R"({"prompt": ["text", [1, 2, 256], ""], "max_tokens": 3, "top_k": 4, "min_p": 0.1,
          "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.3,
          "logit_bias": {}, "model": "tiny", "stream": true,
          "stream_options": {"include_usage": true}})"};
  ServedModel served;
  FuzzRounds rounds(400);
  while (rounds.Next()) {
    SCOPED_TRACE(rounds.seed());
    const std::string body = Mutated(bodies[rounds.random()() % bodies.size()],
                                     {"{",
                                      "}",
                                      "[",
                                      "]",
                                      ",",
                                      ":",
                                      "\"",
                                      "null",
                                      "true",
                                      "-1",
                                      "1e999",
                                      "0.0",
                                      "99999999999999999999",
                                      "\\u0000",
                                      "\\ud800",
                                      "\"n\"",
                                      "\"prompt\"",
                                      "\"messages\"",
                                      "\"content\"",
                                      "\"stream\":true",
                                      "[[",
                                      "256",
                                      "-2147483649"},
                                     rounds.random());
    const char* path = rounds.random()() % 2 == 0 ? "/v1/chat/completions" : "/v1/completions";
    HttpResponse response = served.server().Handle({"POST", path, body});
    ASSERT_TRUE(response.status == 200 || response.status == 400 || response.status == 404)
        << response.status << response.body;
    if (response.stream) {
      const bool events = response.content_type == "text/event-stream";
      response.stream([&](const std::string& bytes) {
        response.body = !events ? bytes : bytes.substr(0, 6) == "data: " ? "{}" : "";
        return true;
      });
    }
    ASSERT_TRUE(nlohmann::json::accept(response.body)) << response.body;
  }
}

}  // namespace
}  // namespace espalier
