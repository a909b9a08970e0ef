#include "coordinator/ctl/data_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/scratch_folder.h"

namespace espalier::ctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Text(int64_t tokens) {
  return absl::StrCat(R"({"format": "espalier-tokens", "version": 1, "splits": {"train": {)",
                      R"("tokens": )", tokens, "}}}");
}

const char kExamples[] =
    R"({"format": "espalier-tokens", "version": 2, "holds": "prompt-completion",
        "splits": {"train": {"tokens": 90}}})";

v1::JobSpec Job(v1::Task task, int32_t sequence_length) {
  v1::JobSpec spec;
  spec.mutable_train()->set_task(task);
  spec.mutable_data()->set_sequence_length(sequence_length);
  return spec;
}

absl::Status CheckManifest(const v1::JobSpec& spec, const std::string& manifest,
                           const std::string& folder) {
  const std::optional<HeldData> held = ReadManifest(manifest);
  EXPECT_TRUE(held.has_value()) << manifest;
  return held ? CheckHeldData(spec, *held, folder) : absl::OkStatus();
}

TEST(CheckManifest, LetsATaskHaveItsKindOfData) {
  EXPECT_EQ(CheckManifest(Job(v1::TASK_PRETRAIN, 128), Text(1000), "d"), absl::OkStatus());
  EXPECT_EQ(CheckManifest(Job(v1::TASK_SFT, 128), kExamples, "d"), absl::OkStatus())
      << "examples are filled up to the length";
}

TEST(CheckManifest, KnowsWhoTakesPrompts) {
  const char prompts[] =
      R"({"format": "espalier-tokens", "version": 2, "holds": "prompts",
          "splits": {"train": {"tokens": 90, "documents": 7}}})";
  EXPECT_EQ(CheckManifest(Job(v1::TASK_RFT, 512), prompts, "d"), absl::OkStatus());
  EXPECT_EQ(CheckManifest(Job(v1::TASK_GRPO, 512), prompts, "d"), absl::OkStatus());
  EXPECT_THAT(std::string(CheckManifest(Job(v1::TASK_SFT, 8), prompts, "d").message()),
              HasSubstr("set train.task to rft or grpo"));
  EXPECT_THAT(std::string(CheckManifest(Job(v1::TASK_RFT, 8), kExamples, "d").message()),
              HasSubstr("--format prompts"));
  EXPECT_EQ(ReadManifest(prompts)->training_documents, 7);
}

TEST(CheckManifest, KnowsWhoTakesPairsOfAnswers) {
  const char pairs[] =
      R"({"format": "espalier-tokens", "version": 2, "holds": "preferences",
          "splits": {"train": {"tokens": 90, "documents": 14}}})";
  EXPECT_EQ(CheckManifest(Job(v1::TASK_DPO, 512), pairs, "d"), absl::OkStatus());
  EXPECT_THAT(std::string(CheckManifest(Job(v1::TASK_SFT, 8), pairs, "d").message()),
              HasSubstr("set train.task to dpo"));
  EXPECT_THAT(std::string(CheckManifest(Job(v1::TASK_DPO, 8), kExamples, "d").message()),
              HasSubstr("--format preferences"));
  EXPECT_EQ(ReadManifest(pairs)->training_documents, 7) << "of two answers each";
}

// Puzzles are prompts with completions; text does as well.
TEST(CheckManifest, LetsARecursiveModelHavePuzzlesOrText) {
  EXPECT_EQ(CheckManifest(Job(v1::TASK_TRM, 81), kExamples, "d"), absl::OkStatus());
  EXPECT_EQ(CheckManifest(Job(v1::TASK_TRM, 81), Text(1000), "d"), absl::OkStatus());
}

TEST(CheckManifest, RefusesAnotherKindAndSaysWhatToDo) {
  const absl::Status sft = CheckManifest(Job(v1::TASK_SFT, 128), Text(1000), "/text");
  EXPECT_EQ(sft.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sft.message()),
              AllOf(HasSubstr("/text, which holds text"), HasSubstr("--format auto"),
                    HasSubstr("train.task to pretrain")));
  const absl::Status pretrain = CheckManifest(Job(v1::TASK_PRETRAIN, 8), kExamples, "/pairs");
  EXPECT_EQ(pretrain.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(pretrain.message()),
              AllOf(HasSubstr("/pairs, which holds examples"), HasSubstr("train.task to sft")));
}

TEST(CheckManifest, RefusesSequencesLongerThanTheText) {
  EXPECT_EQ(CheckManifest(Job(v1::TASK_PRETRAIN, 999), Text(1000), "d"), absl::OkStatus());
  const absl::Status status = CheckManifest(Job(v1::TASK_PRETRAIN, 1000), Text(1000), "d");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("data.sequence_length is 1000"), HasSubstr("has 1000 tokens"),
                    HasSubstr("up to 999")));
}

TEST(ReadManifest, SaysNothingOfWhatItDoesNotKnow) {
  for (
      const char* manifest :
      {"", "{}", "[]", "{", R"({"format": "espalier-tokens", "version": 3})",
       R"({"format": 7, "version": "1"})",
       R"({"format": "espalier-tokens", "version": 2, "holds": "images"})",
       R"({"format": "espalier-tokens", "version": 2, "holds": "prompt-completion",
           "splits": {"train": {"tokens": 9, "examples": [{"file": "../a"}]}}})",
       R"({"format": "espalier-tokens", "version": 1, "splits": {"train": {"tokens": "many"}}})"}) {
    EXPECT_FALSE(ReadManifest(manifest).has_value()) << manifest;
  }
}

TEST(CheckData, TellsHowManyStepsTheEpochsAre) {
  ScratchFolder folder;
  folder.Write("manifest.json",
               R"({"format": "espalier-tokens", "version": 2, "holds": "masked-examples",
                   "splits": {"train": {"tokens": 9000, "documents": 890}}})");
  v1::JobSpec spec = Job(v1::TASK_SFT, 8);
  spec.mutable_train()->set_epochs(3);
  spec.mutable_train()->set_global_batch(8);
  spec.mutable_data()->set_path(folder.root());
  EXPECT_EQ(CheckData(spec), absl::OkStatus());
  EXPECT_EQ(spec.train().steps(), 336);
  spec.mutable_train()->clear_steps();
  spec.mutable_train()->set_task(v1::TASK_PRETRAIN);
  folder.Write("manifest.json", Text(8 * 890 + 1));  // windows of 8, and the last target
  EXPECT_EQ(CheckData(spec), absl::OkStatus());
  EXPECT_EQ(spec.train().steps(), 336);
  spec.mutable_train()->clear_steps();
  spec.mutable_data()->set_path(folder.path("none"));
  EXPECT_EQ(CheckData(spec).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(CheckData(spec).message()), HasSubstr("give train.steps"));
}

// A table of examples, as worker/data/README.md says: where completions begin, and where examples
// end.
std::string Table(const std::vector<std::pair<int64_t, int64_t>>& examples) {
  std::string bytes(64, '\0');
  for (const auto& [completion, end] : examples) {
    for (const int64_t number : {completion, end}) {
      for (int i = 0; i < 8; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
    }
  }
  return bytes;
}

std::string ManifestOfTables(const char* holds, int64_t tokens) {
  return absl::StrCat(R"({"format": "espalier-tokens", "version": 2, "holds": ")", holds,
                      R"(", "splits": {"train": {"tokens": )", tokens,
                      R"(, "documents": 6, "examples": [{"file": "a"}, {"file": "b"}]}}})");
}

// Of 12, 3, 5, 4, 3 and 4 tokens, in rows of 9: 9, 5 + 4, 4 + 3, 3. Of pairs one of the last four
// stands in for an empty prompt.
TEST(CheckData, CountsTheRowsThatExamplesShare) {
  ScratchFolder folder;
  v1::JobSpec spec = Job(v1::TASK_SFT, 8);
  spec.mutable_train()->set_epochs(2);
  spec.mutable_train()->set_global_batch(3);
  spec.mutable_data()->set_packing(true);
  spec.mutable_data()->set_path(folder.root());
  folder.Write("a", Table({{11, 12}, {14, 15}, {19, 20}}));
  for (const bool pairs : {false, true}) {
    folder.Write("manifest.json", pairs ? ManifestOfTables("prompt-completion", 30)
                                        : ManifestOfTables("masked-examples", 31));
    folder.Write("b", Table({{23, 24}, {26, 27}, {27, pairs ? 30 : 31}}));
    spec.mutable_train()->clear_steps();
    EXPECT_EQ(CheckData(spec), absl::OkStatus());
    EXPECT_EQ(spec.train().steps(), 4) << "2 an epoch";
  }
  spec.mutable_train()->clear_steps();
  for (const std::string& damaged :
       {Table({{23, 24}, {19, 20}}), Table({{23, 24}, {98, 99}}), std::string(70, 'x')}) {
    folder.Write("b", damaged);
    EXPECT_EQ(CheckData(spec).code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_THAT(std::string(CheckData(spec).message()), HasSubstr("b is damaged"));
}

// A folder of prompts whose first record is this.
void WritePrompts(const ScratchFolder& folder, const std::string& record) {
  const auto size = static_cast<int64_t>(record.size());
  folder.Write("manifest.json",
               R"({"format": "espalier-tokens", "version": 2, "holds": "prompts",
                   "splits": {"train": {"tokens": 90, "documents": 2,
                   "examples": [{"file": "prompts"}], "records": [{"file": "records"}]}}})");
  folder.Write("prompts", Table({{size, 40}, {2 * size, 90}}));
  folder.Write("records", std::string(64, '\0') + record + record);
}

TEST(CheckData, RefusesRecordsOfAnotherVerifier) {
  struct {
    const char* kind;
    const char* record;
    const char* error;  // empty: fine
  } const cases[] = {
      {"wordle", R"({"secret": "ALLEY", "history": []})", ""},
      {"wordle", R"({"answer": 36})", "have 'secret', a text, and that of"},
      {"arithmetic", R"({"answer": 36})", ""},
      {"arithmetic", R"({"answer": 3.5})", "'answer', a whole number"},
      {"arithmetic", R"({"secret": "ALLEY"})", "is '{\"secret\": \"ALLEY\"}'"},
      {"units", R"({"answer": 3.5})", ""},
      {"units", R"({"secret": "ALLEY"})", "'answer', a number"},
      {"external", R"({"wanted": ["gram"]})", ""},
      {"wordle", "no JSON", ""},
  };
  ScratchFolder folder;
  v1::JobSpec spec = Job(v1::TASK_GRPO, 8);
  spec.mutable_data()->set_path(folder.root());
  for (const auto& [kind, record, error] : cases) {
    WritePrompts(folder, record);
    spec.mutable_train()->mutable_verifier()->set_kind(kind);
    const absl::Status status = CheckData(spec);
    EXPECT_EQ(status.ok(), *error == '\0') << kind << " " << record << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(error));
  }
  folder.Write("prompts", Table({{int64_t{1} << 40, 40}}));
  EXPECT_EQ(CheckData(spec), absl::OkStatus()) << "the workers say that it is damaged";
}

TEST(CheckData, IsOfThisMachineAlone) {
  ScratchFolder folder;
  v1::JobSpec spec = Job(v1::TASK_SFT, 8);
  spec.mutable_data()->set_path(folder.path("none"));
  EXPECT_EQ(CheckData(spec), absl::OkStatus());
  EXPECT_THAT(DataRemark(spec), HasSubstr("none does not exist on this machine"));
  spec.mutable_data()->set_path(folder.root());
  EXPECT_EQ(CheckData(spec), absl::OkStatus());
  EXPECT_THAT(DataRemark(spec), HasSubstr("holds no prepared data on this machine"));
  folder.Write("manifest.json", Text(1000));
  EXPECT_EQ(CheckData(spec).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DataRemark(spec), "");
}

TEST(ProgramRemark, NamesAVerifierThatIsNotThereOrMayNotBeRun) {
  ScratchFolder folder;
  v1::JobSpec spec;
  EXPECT_EQ(ProgramRemark(spec), "");
  v1::VerifierSpec& verifier = *spec.mutable_train()->mutable_verifier();
  verifier.set_kind("external");
  verifier.add_command(folder.path("judge"));
  EXPECT_THAT(ProgramRemark(spec), HasSubstr("judge is no file on this machine"));
  folder.Write("judge", "#!/bin/sh\n");
  EXPECT_THAT(ProgramRemark(spec), HasSubstr("judge is not executable (chmod +x)"));
  std::filesystem::permissions(folder.path("judge"), std::filesystem::perms::owner_all);
  EXPECT_EQ(ProgramRemark(spec), "");
  verifier.set_command(0, "judge-of-each-node");
  EXPECT_EQ(ProgramRemark(spec), "") << "each node searches for it";
}

v1::JobSpec From(const std::string& folder) {
  v1::JobSpec spec;
  spec.mutable_model()->set_from(folder);
  return spec;
}

TEST(CheckModel, TakesAModelACheckpointAndAFolderOfThem) {
  ScratchFolder folder;
  std::filesystem::create_directories(folder.path("runs/step-00000900"));  // of no manifest
  for (const char* step : {"step-00000400", "step-00000500", "step-00000500.bad-1"}) {
    std::filesystem::create_directories(folder.path("runs/") + step);
    folder.Write(std::string("runs/") + step + "/manifest.json", "{}");
  }
  folder.Write("runs/step-00000500/config.json", "{}");
  v1::JobSpec spec;
  EXPECT_EQ(CheckModel(spec), absl::OkStatus()) << "none is named";
  for (const char* named : {"runs/step-00000500", "runs"}) {
    spec = From(folder.path(named));
    EXPECT_EQ(CheckModel(spec), absl::OkStatus());
    EXPECT_EQ(spec.model().from(), folder.path("runs/step-00000500"))
        << "once for all: more may be written while the job runs";
  }
}

TEST(CheckModel, SaysWhatIsMissingAndWhatWouldDo) {
  ScratchFolder folder;
  v1::JobSpec spec = From(folder.path("none"));
  const absl::Status missing = CheckModel(spec);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()),
              AllOf(HasSubstr("none does not exist on this machine"), HasSubstr("step-00000500")));
  spec = From(folder.root());
  const absl::Status empty = CheckModel(spec);
  EXPECT_EQ(empty.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(empty.message()),
              AllOf(HasSubstr("holds no config.json and no checkpoint"), HasSubstr("folder of")));
  folder.Write("file", "");
  spec = From(folder.path("file"));
  EXPECT_EQ(CheckModel(spec).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier::ctl
