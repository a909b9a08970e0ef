// Which part of a rendered conversation the assistant wrote, of the templates of models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "worker/chat/chat_template.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;

Json Variables(const std::vector<std::pair<std::string, std::string>>& turns) {
  Json variables{{"messages", Json::array()}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
  for (const auto& [role, content] : turns) {
    variables["messages"].push_back({{"role", role}, {"content", content}});
  }
  return variables;
}

const Json& TwoAnswers() {
  static const Json& variables = *new Json(Variables(
      {{"user", "one?"}, {"assistant", "1"}, {"user", "two?"}, {"assistant", "2 \xc3\xa9"}}));
  return variables;
}

std::string Source(const std::string& name) {
  std::ifstream file(std::string(ESPALIER_SOURCE_DIR "/tests/data/chat_templates/") + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::StatusOr<std::vector<std::string>> Answers(const std::string& source, const Json& variables) {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  const auto marked = parsed->RenderMarked(variables, absl::UnixEpoch());
  if (!marked.ok()) return marked.status();
  EXPECT_EQ(marked->text, *parsed->Render(variables, {.now = absl::UnixEpoch()}));
  std::vector<std::string> answers;
  for (const TextSpan& span : marked->answers) {
    answers.push_back(marked->text.substr(span.begin, span.end - span.begin));
  }
  return answers;
}

struct AnswersCase {
  const char* name;
  const char* first;
  const char* second;
};

class AnswersOf : public testing::TestWithParam<AnswersCase> {};

TEST_P(AnswersOf, AreWhatComesAfterTheGenerationPrompt) {
  const auto answers = Answers(Source(std::string(GetParam().name) + ".jinja"), TwoAnswers());
  ASSERT_TRUE(answers.ok()) << answers.status();
  EXPECT_THAT(*answers, ElementsAre(GetParam().first, GetParam().second));
}

INSTANTIATE_TEST_SUITE_P(
    Models, AnswersOf,
    testing::Values(AnswersCase{"chatml", "1<|im_end|>\n", "2 \xc3\xa9<|im_end|>\n"},
                    AnswersCase{"smollm2", "1<|im_end|>\n", "2 \xc3\xa9<|im_end|>\n"},
                    AnswersCase{"llama3", "1<|eot_id|>", "2 \xc3\xa9<|eot_id|>"},
                    AnswersCase{"gemma", "1<end_of_turn>\n", "2 \xc3\xa9<end_of_turn>\n"}),
    [](const auto& info) { return info.param.name; });

TEST(Answers, AreThoseThatTheTemplateMarks) {
  const auto answers = Answers(
      "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}",
      TwoAnswers());
  ASSERT_TRUE(answers.ok()) << answers.status();
  EXPECT_THAT(*answers, ElementsAre("1", "2 \xc3\xa9"));
}

TEST(Answers, OfATemplateThatRewritesEarlierOnesAreRefused) {
  const auto answers = Answers(
      "{% for m in messages %}[{{ m.content }}{% if loop.last %}, last{% endif %}]{% endfor %}",
      TwoAnswers());
  EXPECT_EQ(answers.status().code(), absl::StatusCode::kInvalidArgument) << answers.status();
  EXPECT_THAT(std::string(answers.status().message()), HasSubstr("{% generation %}"));
}

// Qwen 3 writes what was thought, and be it nothing, before the last answer alone.
TEST(Answers, ThatLoseTheirBeginningLaterEndWhereTheyEnd) {
  const std::string end = "<|im_end|>\n", nothing = "<think>\n\n</think>\n\n";
  const auto answers = Answers(Source("qwen3.jinja"), TwoAnswers());
  ASSERT_TRUE(answers.ok()) << answers.status();
  EXPECT_THAT(*answers, ElementsAre("1" + end, nothing + "2 \xc3\xa9" + end));
  const auto thought =
      Answers(Source("qwen3.jinja"), Variables({{"user", "a"},
                                                {"assistant", "<think>\nx\n</think>\n\naa aa"},
                                                {"user", "b"},
                                                {"assistant", "<think>\ny\n</think>\n\naa"},
                                                {"user", "c"},
                                                {"assistant", "c"}}));
  ASSERT_TRUE(thought.ok()) << thought.status();
  EXPECT_THAT(*thought, ElementsAre("aa aa" + end, "aa" + end, nothing + "c" + end));
}

// What happens to end alike is no answer's end.
TEST(Answers, AreNotGuessedFromASingleLetter) {
  const auto answers = Answers(
      "{% for m in messages %}{{ m.content }}{% if loop.last and m.role == 'assistant' %} and 1"
      "{% endif %}{% endfor %}",
      TwoAnswers());
  EXPECT_EQ(answers.status().code(), absl::StatusCode::kInvalidArgument) << answers.status();
}

TEST(Answers, ToNothingAreRefused) {
  const auto answers = Answers(Source("chatml.jinja"), Variables({{"assistant", "1"}}));
  EXPECT_EQ(answers.status().code(), absl::StatusCode::kFailedPrecondition) << answers.status();
}

TEST(Answers, NeedMessagesThatAreObjects) {
  const auto parsed = ChatTemplate::ChatMl();
  for (const char* variables : {"{}", R"({"messages": 3})", R"({"messages": ["x"]})"}) {
    const auto marked = parsed.RenderMarked(Json::parse(variables), absl::UnixEpoch());
    EXPECT_EQ(marked.status().code(), absl::StatusCode::kInvalidArgument) << marked.status();
  }
}

}  // namespace
}  // namespace espalier
