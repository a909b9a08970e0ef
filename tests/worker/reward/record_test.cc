// Records, files of prompts, and the folder that data is written to.
#include "worker/reward/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/reward/made_data.h"
#include "worker/reward/open_verifier.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(Record, IsAnObjectOfAnOrdinaryShape) {
  EXPECT_EQ((*ParseRecord(R"({"answer": 5})"))["answer"], 5);
  for (const std::string& json : {std::string("[]"), std::string("{"), std::string(),
                                  std::string(100, '['), std::string("{\"a\": \xFF}")}) {
    const auto record = ParseRecord(json);
    EXPECT_EQ(record.status().code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(record.status().message()), HasSubstr("the record"));
  }
}

TEST(RewardPrompts, AreReadAsTheyWereWritten) {
  const TestFolder folder;
  const RewardPrompt prompt{.prompt = "line\nand \"more\" ✓", .record = R"({"answer":5})"};
  const std::string path =
      folder.Write("prompts.jsonl", RewardPromptRow(prompt) + "\n" + RewardPromptRow({"b", "{}"}));
  const auto prompts = LoadRewardPrompts(path);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].prompt, prompt.prompt);
  EXPECT_EQ((*prompts)[0].record, prompt.record);
  EXPECT_EQ((*prompts)[1].record, "{}");
}

TEST(RewardPrompts, ThatAreNoneAreNamedByFileAndLine) {
  const TestFolder folder;
  const auto load = [&](const std::string& text) {
    return std::string(LoadRewardPrompts(folder.Write("prompts.jsonl", text)).status().message());
  };
  EXPECT_THAT(load("{\"prompt\": \"a\", \"record\": {}}\n{\"prompt\": \"b\", \"answer\": 5}\n"),
              HasSubstr("prompts.jsonl:2: a prompt is"));
  EXPECT_THAT(load("{\"prompt\": 5, \"record\": {}}\n"), HasSubstr(":1:"));
  EXPECT_THAT(load("\n"), HasSubstr("has no prompt"));
}

TEST(DataWriter, ShowsTheFolderWhenItIsWholeAndNeverTouchesOneThatIsThere) {
  const TestFolder folder;
  ASSERT_TRUE(MakeData(folder, "data", [&](DataWriter& writer) {
                EXPECT_TRUE(writer.AddExample(DataSplit::kTrain, {.opening = "p"}, "c").ok());
                EXPECT_TRUE(writer.AddPrompt(DataSplit::kValidation, {"p", "{}"}).ok());
                EXPECT_TRUE(writer.AddFile("words.txt", "CRANE\n").ok());
                EXPECT_FALSE(Names(folder.path()).count("data"));
                EXPECT_THAT(writer.Rows(),
                            ElementsAre(Pair("train.jsonl", 1), Pair("validation.jsonl", 0),
                                        Pair("train-prompts.jsonl", 0),
                                        Pair("validation-prompts.jsonl", 1)));
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(Names(folder.path()).size(), 1u);
  EXPECT_EQ(ReadText(folder / "data/train.jsonl"), "{\"prompt\":\"p\",\"completion\":\"c\"}\n");
  EXPECT_EQ(ReadText(folder / "data/words.txt"), "CRANE\n");
  EXPECT_EQ(DataWriter::Create(PosixFileSystem(), folder / "data").status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(DataWriter, LeavesNothingWhenItFails) {
  const TestFolder folder;
  EXPECT_FALSE(MakeData(folder, "data", [](DataWriter& writer) {
                 EXPECT_TRUE(writer.AddExample(DataSplit::kTrain, {.opening = "p"}, "c").ok());
                 return absl::CancelledError();
               }).ok());
  EXPECT_TRUE(Names(folder.path()).empty());
}

TEST(OpenVerifier, GivesTheOneThatIsNamed) {
  EXPECT_EQ(*ParseVerifierKind("wordle"), VerifierKind::kWordle);
  EXPECT_EQ(*ParseVerifierKind("external"), VerifierKind::kExternal);
  EXPECT_THAT(std::string(ParseVerifierKind("wordl").status().message()), HasSubstr("external"));
  const std::string data = ESPALIER_SOURCE_DIR "/configs/data/";
  const auto total = [](const VerifierOptions& options, const std::string& record,
                        const std::string& text) {
    const auto verifier = OpenVerifier(options);
    EXPECT_TRUE(verifier.ok()) << verifier.status();
    return (*verifier)->Judge({{record, text}}, {})->front().total;
  };
  EXPECT_DOUBLE_EQ(
      total({.kind = *ParseVerifierKind("units")}, R"({"answer": 0.5})", "<answer>0.51</answer>"),
      1.1);
  EXPECT_DOUBLE_EQ(
      total({.kind = *ParseVerifierKind("arithmetic")}, R"({"answer": 5})", "<answer>5</answer>"),
      1.1);
  EXPECT_GT(total({.kind = VerifierKind::kWordle,
                   .words = data + "wordle-words.txt",
                   .secrets = data + "wordle-secrets.txt"},
                  R"({"secret": "ALLEY"})", "So.</think>\n<guess>CRANE</guess>"),
            1.1);
}

TEST(OpenVerifier, OfWordleWithoutWordsSaysWhereTheyComeFrom) {
  EXPECT_THAT(std::string(OpenVerifier({.kind = VerifierKind::kWordle}).status().message()),
              HasSubstr("words.txt"));
}

}  // namespace
}  // namespace espalier
