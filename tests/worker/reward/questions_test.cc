// What unit_conversion.h and arithmetic.h ask is answered as their verifiers want it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/reward/made_data.h"
#include "worker/reward/answers.h"
#include "worker/reward/arithmetic.h"
#include "worker/reward/question_data.h"
#include "worker/reward/unit_conversion.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

double NumberOf(const std::string& text) {
  double value = 0;
  EXPECT_TRUE(absl::SimpleAtod(text, &value)) << text;
  return value;
}

TEST(Units, AreAsLargeAsTheyAre) {
  EXPECT_DOUBLE_EQ(*UnitRatio("kg", "gram"), 1000);
  EXPECT_DOUBLE_EQ(*UnitRatio("gram", "kg"), 0.001);
  EXPECT_DOUBLE_EQ(*UnitRatio("mile", "foot"), 5280);
  EXPECT_DOUBLE_EQ(*UnitRatio("yard", "inch"), 36);
  EXPECT_DOUBLE_EQ(*UnitRatio("pound", "ounce"), 16);
  EXPECT_DOUBLE_EQ(*UnitRatio("week", "hour"), 168);
  EXPECT_DOUBLE_EQ(*UnitRatio("m/s", "km/h"), 3.6);
  EXPECT_NEAR(*UnitRatio("mph", "ft/s"), 5280 / 3600.0, 1e-12);
  EXPECT_NEAR(*UnitRatio("gallon", "cup"), 16, 1e-9);
  EXPECT_NEAR(*UnitRatio("quart", "pint"), 2, 1e-12);
  EXPECT_DOUBLE_EQ(*UnitRatio("byte", "bit"), 8);
  EXPECT_DOUBLE_EQ(*UnitRatio("GiB", "KiB"), 1048576);
  EXPECT_DOUBLE_EQ(*UnitRatio("TB", "GB"), 1000);
  EXPECT_EQ(UnitRatio("kg", "hour").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(UnitRatio("stone", "kg").status().message()), HasSubstr("pound"));
}

TEST(Units, QuestionsAreSolvedRightly) {
  const auto verifier = MakeAnswerVerifier(AnswerKind::kMeasure);
  SplitMix64 random(1);
  std::set<std::string> texts;
  for (int i = 0; i < 5000; ++i) {
    const Question question = AskConversion({.most = 200}, random);
    const double answer = NumberOf(question.answer);
    EXPECT_GE(answer, 0.0099);
    EXPECT_LE(answer, 1e9);
    const std::string record = absl::StrCat("{\"answer\": ", question.answer, "}");
    const auto judged = verifier->Judge({{record, question.solution}}, {});
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_TRUE(judged->front().accepted()) << question.text << " " << question.solution;
    EXPECT_FALSE(absl::StrContains(question.text, "$")) << question.text;
    texts.insert(question.text);
  }
  EXPECT_GT(texts.size(), 4000u);
}

TEST(Units, SolutionsSayWhatTheyDo) {
  EXPECT_EQ(UnitExamples()[0].question, "How many m are there per 3 km?");
  EXPECT_EQ(UnitExamples()[0].solution,
            "1 km is 1000 m, so 3 km are 3 * 1000 = 3000 m: <answer>3000</answer>");
  EXPECT_EQ(UnitExamples()[1].solution,
            "1 hour is 60 minute, so 45 minute are 45 / 60 = 0.75 hour: <answer>0.75</answer>");
}

TEST(Units, AreThoseOfTheFamiliesAskedFor) {
  SplitMix64 random(2);
  for (int i = 0; i < 200; ++i) {
    const std::string key = AskConversion({.families = {"data"}}, random).key;
    EXPECT_TRUE(absl::StrContains(key, "B") || absl::StrContains(key, "b")) << key;
  }
  EXPECT_THAT(std::string(CheckUnitOptions({.families = {"money"}}).message()),
              HasSubstr("length"));
  EXPECT_FALSE(CheckUnitOptions({.most = 0}).ok());
  EXPECT_TRUE(CheckUnitOptions({.families = {"time", "mass"}}).ok());
}

TEST(Numbers, AreWrittenAsPeopleDo) {
  const std::pair<double, const char*> cases[] = {{6000000, "6000000"},
                                                  {0, "0"},
                                                  {-0.0, "0"},
                                                  {2.5, "2.5"},
                                                  {1609.344, "1609.34"},
                                                  {1.0 / 3, "0.333333"},
                                                  {0.0123456789, "0.0123457"},
                                                  {123456.7, "123457"},
                                                  {999999.7, "1000000"},
                                                  {-4.25, "-4.25"},
                                                  {0.1 + 0.2, "0.3"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(SpellNumber(value), text) << value;
}

// The value of an expression, by its grammar.
class Calculator {
 public:
  explicit Calculator(absl::string_view text) : rest_(text) {}
  int64_t Sum() {
    int64_t value = Product();
    for (char c = Peek(); c == '+' || c == '-'; c = Peek()) {
      rest_.remove_prefix(1);
      value = c == '+' ? value + Product() : value - Product();
    }
    return value;
  }
  bool ended() { return Peek() == '\0'; }

 private:
  char Peek() {
    while (!rest_.empty() && rest_[0] == ' ') rest_.remove_prefix(1);
    return rest_.empty() ? '\0' : rest_[0];
  }
  int64_t Product() {
    int64_t value = Factor();
    for (char c = Peek(); c == '*' || c == '/'; c = Peek()) {
      rest_.remove_prefix(1);
      const int64_t other = Factor();
      EXPECT_TRUE(c == '*' || (other != 0 && value % other == 0));
      value = c == '*' ? value * other : value / std::max<int64_t>(other, 1);
    }
    return value;
  }
  int64_t Factor() {
    if (Peek() == '(') {
      rest_.remove_prefix(1);
      const int64_t value = Sum();
      EXPECT_EQ(Peek(), ')');
      rest_.remove_prefix(1);
      return value;
    }
    const bool negative = Peek() == '-';
    if (negative) rest_.remove_prefix(1);
    int64_t value = 0;
    while (!rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9') {
      value = value * 10 + (rest_[0] - '0');
      rest_.remove_prefix(1);
    }
    return negative ? -value : value;
  }
  absl::string_view rest_;
};

TEST(Arithmetic, EveryStepOfASolutionHasTheSameValue) {
  SplitMix64 random(3);
  for (int i = 0; i < 3000; ++i) {
    const ArithmeticOptions options{.terms = 2 + static_cast<int>(random.Below(5)),
                                    .digits = 1 + static_cast<int>(random.Below(3)),
                                    .operations = i % 2 == 0 ? "+-*" : "+-",
                                    .parentheses = i % 3 == 0};
    const Question question = AskArithmetic(options, random);
    const size_t end = question.solution.find(" <answer>");
    ASSERT_NE(end, std::string::npos);
    std::string steps = question.solution.substr(0, end);
    for (size_t at = steps.find(" = "); !steps.empty(); at = steps.find(" = ")) {
      Calculator calculator(absl::string_view(steps).substr(0, at));
      EXPECT_EQ(absl::StrCat(calculator.Sum()), question.answer) << question.solution;
      EXPECT_TRUE(calculator.ended()) << question.solution;
      steps = at == std::string::npos ? "" : steps.substr(at + 3);
    }
    EXPECT_EQ(AnswerText(question.solution), question.answer);
    EXPECT_TRUE(options.parentheses || !absl::StrContains(question.text, "(")) << question.text;
  }
}

TEST(Arithmetic, DivisionsLeaveNoRest) {
  SplitMix64 random(4);
  for (int i = 0; i < 500; ++i) {
    const Question question =
        AskArithmetic({.terms = 3, .digits = 2, .operations = "/", .parentheses = true}, random);
    EXPECT_EQ(absl::StrCat(Calculator(question.key).Sum()), question.answer) << question.key;
  }
}

TEST(Arithmetic, ShowsOneStepAtATime) {
  EXPECT_EQ(ArithmeticExamples()[1].question, "What is 6 + 7 * 4?");
  EXPECT_EQ(ArithmeticExamples()[1].solution, "6 + 7 * 4 = 6 + 28 = 34 <answer>34</answer>");
  EXPECT_EQ(ArithmeticExamples()[0].solution, "17 - 25 = -8 <answer>-8</answer>");
}

TEST(Arithmetic, RefusesWhatItCannotMake) {
  EXPECT_TRUE(CheckArithmetic({}).ok());
  EXPECT_FALSE(CheckArithmetic({.terms = 1}).ok());
  EXPECT_FALSE(CheckArithmetic({.digits = 7}).ok());
  EXPECT_FALSE(CheckArithmetic({.operations = ""}).ok());
  EXPECT_THAT(std::string(CheckArithmetic({.operations = "+%"}).message()), HasSubstr("+%"));
}

absl::Status MakeSums(const TestFolder& folder, const std::string& name,
                      const QuestionDataOptions& options, const ArithmeticOptions& sums) {
  return MakeData(folder, name, [&](DataWriter& writer) {
    return MakeQuestionData([&](SplitMix64& random) { return AskArithmetic(sums, random); },
                            ArithmeticExamples(), options, "allow more digits", writer);
  });
}

TEST(QuestionData, AsksNothingTwice) {
  const TestFolder folder;
  ASSERT_TRUE(MakeSums(folder, "data", {.amount = {.train = 60, .validation = 30, .seed = 2}},
                       {.digits = 1, .operations = "+"})
                  .ok());
  std::set<std::string> asked;
  size_t rows = 0;
  for (const char* name : {"data/train-prompts.jsonl", "data/validation-prompts.jsonl"}) {
    for (const JsonRow& row : RowsOf(folder / name)) {
      asked.insert(row["record"]["question"]);
      EXPECT_EQ(row["prompt"], std::string(row["record"]["question"]) + " ");
      EXPECT_TRUE(row["record"]["answer"].is_number_integer());
      ++rows;
    }
  }
  EXPECT_EQ(rows, 90u);
  EXPECT_EQ(asked.size(), 90u);
  EXPECT_EQ(RowsOf(folder / "data/train.jsonl").size(), 60u);
}

TEST(QuestionData, ThatThereIsNotEnoughOfIsRefusedAndLeavesNothing) {
  const TestFolder folder;
  const absl::Status made = MakeSums(folder, "data", {.amount = {.train = 90, .validation = 30}},
                                     {.digits = 1, .operations = "+"});
  EXPECT_THAT(std::string(made.message()), HasSubstr("allow more digits"));
  EXPECT_TRUE(Names(folder.path()).empty());
}

TEST(QuestionData, IsAFunctionOfTheSeed) {
  const TestFolder folder;
  const auto make = [&](const std::string& name, uint64_t seed, PromptForm form) {
    EXPECT_TRUE(MakeSums(folder, name,
                         {.amount = {.train = 20, .validation = 5, .seed = seed}, .form = form},
                         {.terms = 3})
                    .ok());
    return AllText(folder / name);
  };
  const std::string first = make("a", 1, PromptForm::kPlain);
  EXPECT_EQ(make("b", 1, PromptForm::kPlain), first);
  EXPECT_NE(make("c", 2, PromptForm::kPlain), first);
  EXPECT_THAT(make("d", 1, PromptForm::kChat), HasSubstr("<|im_start|>"));
}

// Of 25 questions that there are, a chat shows two with their answers.
TEST(QuestionData, AsksNothingThatAChatShowsSolved) {
  int asked = 0;
  const auto next = [&](SplitMix64&) {
    const std::string key = absl::StrCat(asked++ % 25, " + 1");
    return Question{.key = key,
                    .text = absl::StrCat("What is ", key, "?"),
                    .answer = "1",
                    .solution = "<answer>1</answer>"};
  };
  const std::vector<WorkedExample> examples = {
      {.question = "3 + 1, please?", .solution = "4", .key = "3 + 1"},
      {.question = "24 + 1, please?", .solution = "25", .key = "24 + 1"}};
  const TestFolder folder;
  const auto made = [&](const std::string& name, int64_t count, PromptForm form) {
    asked = 0;
    const QuestionDataOptions options{.amount = {.train = count, .validation = 0}, .form = form};
    return MakeData(folder, name,
                    [&](DataWriter& writer) {
                      return MakeQuestionData(next, examples, options, "", writer);
                    })
        .ok();
  };
  EXPECT_TRUE(made("plain", 25, PromptForm::kPlain));
  EXPECT_TRUE(made("chat", 23, PromptForm::kChat));
  EXPECT_FALSE(made("more", 24, PromptForm::kChat));
  const std::string text = AllText(folder / "chat");
  EXPECT_THAT(text, HasSubstr("What is 4 + 1?"));
  EXPECT_THAT(text, Not(HasSubstr("What is 3 + 1?")));
  EXPECT_THAT(text, Not(HasSubstr("What is 24 + 1?")));
}

TEST(QuestionData, ExamplesHaveTheKeysOfTheirQuestions) {
  SplitMix64 random(1);
  std::set<std::string> keys;
  for (int i = 0; i < 30000; ++i) keys.insert(AskConversion({.most = 50}, random).key);
  for (const WorkedExample& one : UnitExamples()) EXPECT_EQ(keys.count(one.key), 1U) << one.key;
  for (const WorkedExample& one : ArithmeticExamples()) {
    EXPECT_EQ(one.question, absl::StrCat("What is ", one.key, "?"));
  }
}

}  // namespace
}  // namespace espalier
