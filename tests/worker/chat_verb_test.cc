// `espalier chat` with a model that was trained, whose lines come from a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/worker/child.h"
#include "tests/worker/support/test_folder.h"

namespace espalier {
namespace {

using testing::HasSubstr;

class Chat : public testing::Test {
 protected:
  // A model that continues what is said to it; `chat_template`: of its tokenizer, or empty.
  void MakeModel(const std::string& chat_template) {
    std::filesystem::copy(ESPALIER_SOURCE_DIR "/tests/data/models/quickstart", folder_ / "model");
    std::ofstream file(folder_ / "model" + "/tokenizer_config.json");
    file << "{\"eos_token\": \"<|endoftext|>\"";
    if (!chat_template.empty()) file << ", \"chat_template\": \"" << chat_template << "\"";
    file << "}";
  }
  Ended Talk(const std::string& lines, const std::string& options = "") {
    const std::string input = folder_.Write("lines.txt", lines);
    return RunToEnd({"sh", "-c",
                     absl::StrCat(WorkerProgram(), " chat --model ", folder_ / "model",
                                  " --threads 1 --device cpu ", options, " < ", input)},
                    folder_ / "chat.log");
  }
  const TestFolder folder_;
};

constexpr char kTemplate[] =
    "{% for m in messages %}// {{ m.role }}: {{ m.content }}\\n"
    "{% endfor %}// ";

TEST_F(Chat, AnswersEveryLineAndKeepsToItsSeed) {
  MakeModel(kTemplate);
  const std::string options = "--max-tokens 12 --seed 5 --system short";
  const Ended first = Talk("hello\n\n  what else  \n", options);
  EXPECT_EQ(first.code, 0) << first.output;
  EXPECT_GE(std::count(first.output.begin(), first.output.end(), '\n'), 2) << first.output;
  EXPECT_EQ(Talk("hello\n\n  what else  \n", options).output, first.output);
  EXPECT_EQ(Talk("hello\n/exit\nnever\n", options).code, 0);
}

TEST_F(Chat, AConversationThatGetsTooLongForgetsItsBeginning) {
  MakeModel(kTemplate);
  std::string lines;
  for (int i = 0; i < 12; ++i) lines += "tell me more\n";
  const Ended ended = Talk(lines, "--max-tokens 20 --context 128");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("oldest exchange is forgotten"));
}

// What is said after it is answered as if it had not been said.
TEST_F(Chat, AMessageThatIsTooLongIsNotTakenAndNothingIsForgottenForIt) {
  MakeModel(kTemplate);
  const std::string options = "--max-tokens 12 --seed 5 --context 128", too_long(4000, '%');
  const Ended without = Talk("hello\nwhat else\n", options);
  const Ended with = Talk(absl::StrCat("hello\n", too_long, "\nwhat else\n"), options);
  EXPECT_EQ(with.code, 0) << with.output;
  const size_t told = with.output.find("[not taken: ");
  ASSERT_NE(told, std::string::npos) << with.output;
  const std::string first_end = "[cut short: --max-tokens]\n";
  const std::string last = without.output.substr(without.output.find(first_end) + first_end.size());
  EXPECT_FALSE(last.empty()) << without.output;
  EXPECT_THAT(with.output, testing::EndsWith(last));
}

TEST_F(Chat, AModelWithoutATemplateSaysSo) {
  MakeModel("");
  const Ended ended = Talk("hello\n");
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.output, HasSubstr("cannot be talked to"));
}

}  // namespace
}  // namespace espalier
