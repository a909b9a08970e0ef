// Data preparation: everything or nothing, whatever happens to the options, the disk or the
// process.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/worker/support/fault_file_system.h"
#include "tests/worker/support/test_folder.h"
#include "worker/data/dataset.h"
#include "worker/data/prepare.h"

namespace espalier {
namespace {

using Fault = FaultFileSystem::Fault;

std::optional<RowOptions> RowsOf(DataKind kind) {
  if (kind == DataKind::kText) return std::nullopt;
  const bool masked = kind == DataKind::kMasked;
  return RowOptions{.format = RowFormat::kPromptCompletion,
                    .loss = masked ? LossOn::kAll : LossOn::kCompletions};
}

PrepareOptions Options(const TestFolder& folder, DataKind kind = DataKind::kText) {
  const bool text = kind == DataKind::kText;
  std::string lines = "some text\nin four\nshort\nlines\n";
  if (!text) {
    lines.clear();
    for (const char* name : {"one", "two", "three", "four"}) {
      absl::StrAppend(&lines, "{\"prompt\": \"", name, "\", \"completion\": \"number\"}\n");
    }
  }
  return {.inputs = {folder.Write(text ? "in.txt" : "in.jsonl", lines)},
          .output = folder / "new/out",
          .rows = RowsOf(kind),
          .split_by = SplitBy::kTail,
          .validation_fraction = 0.3,
          .shard_tokens = 20};
}

absl::Status Prepare(FileSystem& files, const PrepareOptions& options) {
  return PrepareData(files, *MakeByteTokenizer(), options).status();
}

int64_t OperationsOfOneRun(DataKind kind) {
  const TestFolder folder;
  FaultFileSystem files({});
  EXPECT_TRUE(Prepare(files, Options(folder, kind)).ok());
  return files.operations();
}

// No data or all of it; and the next run succeeds, leaving nothing of the failed one.
void ExpectAllOrNothing(const TestFolder& folder, DataKind kind) {
  const PrepareOptions options = Options(folder, kind);
  const auto data = Dataset::Open(options.output, {});
  if (data.ok()) {
    EXPECT_TRUE(kind == DataKind::kText               ? data->Windows("validation", 4).ok()
                : kind == DataKind::kPromptCompletion ? data->Examples("validation", 4).ok()
                                                      : data->Masked("validation", 4).ok());
  } else {
    ASSERT_EQ(data.status().code(), absl::StatusCode::kNotFound) << data.status();
    FaultFileSystem files({});  // spares the machine's disk the syncs
    const absl::Status again = Prepare(files, options);
    ASSERT_TRUE(again.ok()) << again;
  }
  EXPECT_EQ(Names(folder / "new"), std::set<std::string>{"out"});
}

class PrepareAllOrNothing : public testing::TestWithParam<DataKind> {};

TEST_P(PrepareAllOrNothing, AFullDiskAtEveryOperationIsSaidAndLeavesNothing) {
  const int64_t operations = OperationsOfOneRun(GetParam());
  ASSERT_GT(operations, 20);
  for (int64_t k = 0; k < operations; ++k) {
    SCOPED_TRACE(k);
    const TestFolder folder;
    const PrepareOptions options = Options(folder, GetParam());
    FaultFileSystem files({Fault::kDiskFull, k});
    const absl::Status status = Prepare(files, options);
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    if (std::filesystem::exists(folder / "new")) {
      for (const std::string& name : Names(folder / "new")) EXPECT_EQ(name, "out");
    }
    ASSERT_NO_FATAL_FAILURE(ExpectAllOrNothing(folder, GetParam()));
  }
}

TEST_P(PrepareAllOrNothing, LostPowerAtEveryOperation) {
  const int64_t operations = OperationsOfOneRun(GetParam());
  for (int64_t k = 0; k < operations; ++k) {
    SCOPED_TRACE(k);
    const TestFolder folder;
    FaultFileSystem files({Fault::kCrash, k});
    ASSERT_FALSE(Prepare(files, Options(folder, GetParam())).ok());
    files.LosePower();
    ASSERT_NO_FATAL_FAILURE(ExpectAllOrNothing(folder, GetParam()));
  }
}

TEST_P(PrepareAllOrNothing, SigkillAtEveryOperation) {
  const int64_t operations = OperationsOfOneRun(GetParam());
  for (int64_t k = 0; k < operations; ++k) {
    SCOPED_TRACE(k);
    const TestFolder folder;
    const PrepareOptions options = Options(folder, GetParam());
    const pid_t child = fork();
    if (child == 0) {
      FaultFileSystem files({Fault::kKill, k});
      Prepare(files, options).IgnoreError();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    ASSERT_NO_FATAL_FAILURE(ExpectAllOrNothing(folder, GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PrepareAllOrNothing,
                         testing::Values(DataKind::kText, DataKind::kPromptCompletion,
                                         DataKind::kMasked),
                         [](const auto& info) {
                           return info.param == DataKind::kText               ? "Text"
                                  : info.param == DataKind::kPromptCompletion ? "PromptCompletion"
                                                                              : "Masked";
                         });

TEST(PrepareLeftovers, ARunInProgressIsLeftAlone) {
  const TestFolder folder;
  // Process 1 always lives; the other number is above every limit of process ids.
  folder.Write("new/.out.preparing-1/train-00000.tokens", "half");
  folder.Write("new/.out.preparing-2147483646/train-00000.tokens", "half");
  ASSERT_TRUE(Prepare(PosixFileSystem(), Options(folder)).ok());
  EXPECT_EQ(Names(folder / "new"), (std::set<std::string>{"out", ".out.preparing-1"}));
}

TEST(Prepare, AnOutputThatHoldsSomethingIsNotTouched) {
  const TestFolder folder;
  folder.Write("new/out/thesis.txt", "irreplaceable");
  EXPECT_EQ(Prepare(PosixFileSystem(), Options(folder)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Names(folder / "new/out"), std::set<std::string>{"thesis.txt"});
  std::filesystem::remove(folder / "new/out/thesis.txt");
  EXPECT_TRUE(Prepare(PosixFileSystem(), Options(folder)).ok()) << "an empty folder is fine";
}

TEST(Prepare, BadOptionsAreRefusedBeforeAnythingIsMade) {
  const TestFolder folder;
  std::vector<PrepareOptions> bad(9, Options(folder));
  bad[0].inputs.clear();
  bad[1].output.clear();
  bad[2].validation_fraction = 0;
  bad[3].validation_fraction = 1;
  bad[4].shard_tokens = 0;
  bad[5].validation_inputs = {folder / "in.txt"};
  bad[6].split_by = SplitBy::kFiles;
  bad[7].inputs = {"/dev/null"};
  bad[8] = Options(folder, DataKind::kPromptCompletion);
  bad[8].fields.completion = bad[8].fields.prompt;
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(Prepare(PosixFileSystem(), bad[i]).code(), absl::StatusCode::kInvalidArgument) << i;
  }
  PrepareOptions missing = Options(folder);
  missing.inputs = {folder / "none"};
  EXPECT_EQ(Prepare(PosixFileSystem(), missing).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
}

}  // namespace
}  // namespace espalier
