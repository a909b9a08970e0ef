#include "worker/serve/openai_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "tests/worker/serve/served_model.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kChat[] = "/v1/chat/completions", kText[] = "/v1/completions";

json Ask(ServedModel& served, const std::string& path, const json& body, int status = 200) {
  const HttpResponse response = served.server().Handle({"POST", path, body.dump()});
  const std::string whole = BodyOf(response);
  EXPECT_EQ(response.status, status) << whole;
  return json::parse(whole);
}

// The events of a stream.
std::vector<std::string> Events(ServedModel& served, const std::string& path, const json& body) {
  const HttpResponse response = served.server().Handle({"POST", path, body.dump()});
  EXPECT_EQ(response.content_type, "text/event-stream") << response.body;
  const std::string all = BodyOf(response);
  std::vector<std::string> events;
  for (absl::string_view event : absl::StrSplit(all, "\n\n", absl::SkipEmpty())) {
    EXPECT_TRUE(absl::ConsumePrefix(&event, "data: ")) << event;
    events.emplace_back(event);
  }
  return events;
}

json Hello(json more) {
  more["messages"] = {{{"role", "user"}, {"content", "hello"}}};
  return more;
}

TEST(OpenAiServer, AnswersAChat) {
  ServedModel served;
  const json answer = Ask(served, kChat, Hello({{"max_tokens", 9}, {"seed", 4}}));
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_THAT(answer["id"].get<std::string>(), testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], std::string("user: hello\nassistant:").size());
  EXPECT_EQ(answer["usage"]["completion_tokens"], 9);
  EXPECT_EQ(answer["usage"]["total_tokens"], answer["usage"]["prompt_tokens"].get<int>() + 9);
}

TEST(OpenAiServer, ContinuesTextsOfManyPromptsAndChoices) {
  ServedModel served;
  const json body = {{"prompt", {"one", "two"}}, {"n", 3}, {"max_tokens", 5}, {"seed", 1}};
  const json answer = Ask(served, kText, body);
  EXPECT_EQ(answer["object"], "text_completion");
  ASSERT_EQ(answer["choices"].size(), 6U);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(answer["choices"][i]["index"], i);
  EXPECT_NE(answer["choices"][0]["text"], answer["choices"][1]["text"]);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 30);
}

// Of tokenizers that take the first space of a text away.
TEST(OpenAiServer, ACompletionKeepsTheSpaceBehindItsPrompt) {
  ServedModel served(ServedModel::DefaultOptions(),
                     *OpenTokenizer(ESPALIER_SOURCE_DIR "/tests/data/tokenizers/llama2"));
  bool seen = false;
  for (int seed = 0; seed < 200 && !seen; ++seed) {
    const json body = {{"prompt", "France"}, {"max_tokens", 3}, {"seed", seed}, {"stream", false}};
    const std::string text = Ask(served, kText, body)["choices"][0]["text"];
    seen = text.size() > 1 && text[0] == ' ' && text[1] != ' ';
  }
  EXPECT_TRUE(seen) << "a word follows a word";
}

TEST(OpenAiServer, ASeedDecides) {
  ServedModel served;
  const auto say = [&](const json& more) {
    json body = {{"prompt", "x"}, {"max_tokens", 20}};
    body.update(more);
    return Ask(served, kText, body)["choices"][0]["text"].get<std::string>();
  };
  EXPECT_EQ(say({{"seed", 7}}), say({{"seed", 7}}));
  EXPECT_NE(say({{"seed", 7}}), say({{"seed", 8}}));
  EXPECT_NE(say(json::object()), say(json::object()));
  EXPECT_EQ(say({{"temperature", 0}}), say({{"temperature", 0}}));
}

TEST(OpenAiServer, AStreamIsTheSameInPieces) {
  ServedModel served;
  json body = Hello({{"max_tokens", 12}, {"seed", 4}, {"n", 2}});
  const json whole = Ask(served, kChat, body);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const std::vector<std::string> events = Events(served, kChat, body);
  ASSERT_GE(events.size(), 6U);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(json::parse(events[0])["choices"][0]["delta"]["role"], "assistant");
  std::vector<std::string> texts(2);
  std::vector<json> finish(2);
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    const json& choice = chunk["choices"][0];
    const size_t index = choice["index"];
    texts[index] += choice["delta"].value("content", "");
    if (!choice["finish_reason"].is_null()) finish[index] = choice["finish_reason"];
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(whole["choices"][i]["message"]["content"], texts[i]);
    EXPECT_EQ(finish[i], whole["choices"][i]["finish_reason"]);
  }
  EXPECT_EQ(json::parse(events[events.size() - 2])["usage"], whole["usage"]);
}

TEST(OpenAiServer, NobodyReadingEndsTheWork) {
  ServedModel served;
  json body = {{"prompt", "x"}, {"max_tokens", 250}, {"stream", true}, {"n", 40}};
  {
    const HttpResponse response = served.server().Handle({"POST", kText, body.dump()});
    response.stream([](const std::string&) { return false; });
  }
  const int64_t before = served.service().turns();
  Ask(served, kText, {{"prompt", "y"}, {"max_tokens", 5}});
  EXPECT_LT(served.service().turns() - before, 100);
}

TEST(OpenAiServer, RefusalsAreInOpenAisForm) {
  ServedModel served;
  const auto refused = [&](const json& body, int status, const char* type) {
    const json error = Ask(served, kText, body, status)["error"];
    EXPECT_EQ(error["type"], type);
    EXPECT_TRUE(error.contains("param") && error.contains("code"));
    return error["message"].get<std::string>();
  };
  EXPECT_THAT(refused({{"temperature", -1}}, 400, "invalid_request_error"),
              HasSubstr("temperature is -1"));
  EXPECT_THAT(refused({{"prompt", std::string(300, 'x')}}, 400, "invalid_request_error"),
              HasSubstr("may have 256"));
  EXPECT_THAT(refused({{"prompt", {1, 300}}}, 400, "invalid_request_error"),
              HasSubstr("id 300 is outside"));
  EXPECT_THAT(refused({{"model", "gpt-4"}}, 404, "invalid_request_error"), HasSubstr("'tiny'"));
  {
    const auto all = served.service().Submit(
        {.sequences = std::vector<Sequence>(60, {.prompt = {1}, .max_new_tokens = 250})});
    EXPECT_THAT(refused({{"prompt", "x"}, {"n", 64}}, 429, "rate_limit_error"),
                HasSubstr("try again"));
    (*all)->Abandon();
  }
  EXPECT_THAT(refused({{"prompt", {"x", "y"}}, {"n", 128}}, 400, "invalid_request_error"),
              HasSubstr("allowed: 128"));
}

TEST(OpenAiServer, TellsItsModel) {
  ServedModel served;
  const auto get = [&](const char* path) { return served.server().Handle({"GET", path, ""}); };
  EXPECT_EQ(json::parse(get("/v1/models").body)["data"][0]["id"], "tiny");
  EXPECT_EQ(json::parse(get("/v1/models/tiny").body)["object"], "model");
  EXPECT_EQ(get("/v1/models/other").status, 404);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/").status, 404);
}

TEST(OpenAiServer, AModelWithoutNumbersIsAnErrorOfEachRequestAndNotTheEndOfTheServer) {
  ServedModel served;
  served.Damage();
  for (int i = 0; i < 2; ++i) {
    const json answer = Ask(served, kText, {{"prompt", "x"}, {"max_tokens", 9}}, 500);
    EXPECT_THAT(answer["error"]["message"].get<std::string>(), HasSubstr("not numbers"));
  }
  EXPECT_TRUE(served.Stop().ok());
}

TEST(OpenAiServer, PenaltiesThatWouldLeaveNoNumbersAreRefused) {
  ServedModel served;
  for (const auto& [field, value] : {std::pair{"repetition_penalty", 1e-300},
                                     {"repetition_penalty", 1e300},
                                     {"presence_penalty", -1e300},
                                     {"frequency_penalty", -1e38}}) {
    Ask(served, kText, {{"prompt", "x"}, {field, value}}, 400);
  }
}

// In 1.1 MB; a plain look-up of each of its members takes the square of their number.
TEST(OpenAiServer, AnObjectOfMoreMembersThanAnyRequestHasIsRefusedUnread) {
  ServedModel served;
  json body = {{"prompt", "x"}};
  for (int i = 0; i < 100000; ++i) body["k" + std::to_string(i)] = 1;
  Ask(served, kText, body, 400);
}

TEST(OpenAiServer, AWholeAnswerThatNobodyReadsAnyMoreLeavesItsRows) {
  GenerationService::Options options = ServedModel::DefaultOptions();
  options.most_waiting = 0;
  ServedModel served(options);
  const json long_one = {{"prompt", "x"}, {"max_tokens", 250}, {"n", 4}};
  {
    const HttpResponse left = served.server().Handle({"POST", kText, long_one.dump()});
    EXPECT_FALSE(left.stream([](const std::string&) { return false; }));
  }
  json answer;
  for (int tries = 0; tries < 10000 && !answer.contains("choices"); ++tries) {
    absl::SleepFor(absl::Milliseconds(1));  // for the turns in which they leave
    answer = json::parse(BodyOf(
        served.server().Handle({"POST", kText, R"({"prompt": "x", "max_tokens": 1, "n": 4})"})));
  }
  EXPECT_EQ(answer["choices"].size(), 4U) << answer;
}

TEST(OpenAiServer, MoreAnswersThanItEverGeneratesOrKeepsAreNotWorthAnotherTry) {
  GenerationService::Options options = ServedModel::DefaultOptions();
  options.most_waiting = 2;
  ServedModel served(options);
  const json answer = Ask(served, kText, {{"prompt", "x"}, {"n", 7}}, 400);
  EXPECT_THAT(answer["error"]["message"].get<std::string>(), HasSubstr("more than the 6"));
}

}  // namespace
}  // namespace espalier
