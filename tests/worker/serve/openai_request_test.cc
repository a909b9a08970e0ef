#include "worker/serve/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ParseChatRequest, ReadsWhatClientsSend) {
  const auto request = ParseChatRequest(R"({
    "model": "m", "messages": [{"role": "system", "content": "s"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null}],
    "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "presence_penalty": 0.2,
    "frequency_penalty": -0.5, "repetition_penalty": 1.1, "n": 3, "max_completion_tokens": 7,
    "seed": -5, "stop": "END", "stream": true, "stream_options": {"include_usage": true},
    "user": "u", "logprobs": false, "tools": [], "response_format": {"type": "text"},
    "store": false, "metadata": null})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->model, "m");
  EXPECT_EQ(request->messages.size(), 3U);
  EXPECT_EQ(request->messages[1]["content"], "ab");
  EXPECT_EQ(request->messages[2]["content"], "");
  EXPECT_EQ(request->sample.temperature, 0.5);
  EXPECT_EQ(request->sample.top_k, 0);
  EXPECT_EQ(request->sample.frequency_penalty, -0.5);
  EXPECT_EQ(request->choices, 3);
  EXPECT_EQ(request->max_tokens, 7);
  EXPECT_EQ(request->seed, static_cast<uint64_t>(-5));
  EXPECT_THAT(request->stop, ElementsAre("END"));
  EXPECT_TRUE(request->stream && request->stream_usage);
}

TEST(ParseChatRequest, DefaultsAreOpenAis) {
  const auto request = ParseChatRequest(R"({"messages": [{"role": "user", "content": "x"}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->sample.temperature, 1);
  EXPECT_EQ(request->choices, 1);
  EXPECT_EQ(request->max_tokens, std::nullopt);
  EXPECT_EQ(request->seed, std::nullopt);
  EXPECT_FALSE(request->stream);
}

TEST(ParseCompletionRequest, PromptsAreTextsOrIdsOrManyOfThem) {
  const auto prompts = [](const char* prompt) {
    const auto request = ParseCompletionRequest(absl::StrCat("{\"prompt\": ", prompt, "}"));
    EXPECT_TRUE(request.ok()) << request.status();
    return request->prompts;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_THAT(prompts("\"a\""), ElementsAre(CompletionPrompt("a")));
  EXPECT_THAT(prompts("[1, 2]"), ElementsAre(CompletionPrompt(Ids{1, 2})));
  EXPECT_THAT(prompts("[\"a\", [3], \"b\"]"),
              ElementsAre(CompletionPrompt("a"), CompletionPrompt(Ids{3}), CompletionPrompt("b")));
  EXPECT_THAT(prompts("null"), ElementsAre(CompletionPrompt("")));
  EXPECT_EQ(ParseCompletionRequest("{\"prompt\": \"a\"}")->max_tokens, 16);
}

TEST(ParseRequest, RefusalsNameTheFieldAndWhatIsAllowed) {
  struct Refusal {
    const char* fields;
    const char* message;
  };
  for (const Refusal& refusal : std::vector<Refusal>{
           {R"("temperature": "hot")", "'temperature' is \"hot\"; allowed: a number"},
           {R"("temperature": -1)", "temperature is -1"},
           {R"("top_p": 0)", "top_p is 0"},
           {R"("n": 0)", "'n' is 0; allowed: an integer from 1 to 128"},
           {R"("n": 1.5)", "'n' is 1.5"},
           {R"("n": 18446744073709551615)", "'n' is 18446744073709551615"},
           {R"("max_tokens": -1)", "'max_tokens' is -1"},
           {R"("seed": "x")", "'seed'"},
           {R"("stop": [""])", "'stop'"},
           {R"("stop": 3)", "'stop' is 3"},
           {R"("stream": "yes")", "'stream'"},
           {R"("stream_options": [])", "'stream_options'"},
           {R"("model": 3)", "'model' is 3"},
           {R"("logprobs": true)", "'logprobs' is true; allowed: nothing"},
           {R"("tools": [{"type": "function"}])", "'tools'"},
           {R"("response_format": {"type": "json_object"})", "'response_format'"},
           {R"("messages": [])", "'messages' is []"},
           {R"("messages": [{"role": 3}])", "'messages[]'"},
           {R"("messages": [{"role": "user", "content": [{"type": "image_url"}]}])",
            "'messages[].content'"}}) {
    // Of two fields of one name the last one counts.
    const auto request = ParseChatRequest(
        absl::StrCat(R"({"messages": [{"role": "user", "content": "x"}], )", refusal.fields, "}"));
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << refusal.fields;
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(refusal.message));
  }
  for (const char* body : {"", "[]", "3", "{", "{\"a\": \"\xff\"}", "nul"}) {
    EXPECT_FALSE(ParseChatRequest(body).ok()) << body;
  }
  for (const char* prompt : {"{}", "[1, \"a\"]", "[[]]", "[]", "[-1]", "[4294967296]", "3"}) {
    EXPECT_FALSE(ParseCompletionRequest(absl::StrCat("{\"prompt\": ", prompt, "}")).ok()) << prompt;
  }
}

TEST(ParseRequest, NestingIsBounded) {
  const std::string deep(1000000, '[');
  EXPECT_FALSE(ParseChatRequest(deep).ok());
  EXPECT_FALSE(ParseChatRequest(absl::StrCat("{\"messages\": ", deep)).ok());
  EXPECT_TRUE(ParseCompletionRequest(absl::StrCat("{\"prompt\": \"", deep, "\"}")).ok());
}

}  // namespace
}  // namespace espalier
