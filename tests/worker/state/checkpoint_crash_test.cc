// Invariant 6, old or new, never neither: a fault at every single file operation of a checkpoint.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "absl/functional/function_ref.h"
#include "common/base/status_macros.h"
#include "tests/worker/support/checkpoint_fixture.h"
#include "tests/worker/support/fault_file_system.h"
#include "tests/worker/support/test_folder.h"
#include "worker/state/checkpoint_store.h"

namespace espalier {
namespace {

using Fault = FaultFileSystem::Fault;

CheckpointStore::Options Options(const TestFolder& folder, int keep = 1) {
  return {.directory = folder / "checkpoints", .keep = keep};
}

// A directory that holds step 1, durable.
void WriteOld(const TestFolder& folder) {
  FaultFileSystem files({});  // spares the machine's disk the syncs
  CheckpointStore store(files, Options(folder));
  ASSERT_TRUE(store.Prepare().ok());
  ASSERT_TRUE(store.Write(TinyState(1).Content()).ok());
}

// Writes step 2 over it; keep is 1, so that step 1 is pruned at the end.
absl::Status WriteNew(FileSystem& files, const TestFolder& folder) {
  CheckpointStore store(files, Options(folder));
  RETURN_IF_ERROR(store.Prepare());
  ASSIGN_OR_RETURN(const PublishedCheckpoint written, store.Write(TinyState(2).Content()));
  return written.pruned;
}

int64_t OperationsOfOneWrite() {
  const TestFolder folder;
  WriteOld(folder);
  FaultFileSystem files({});
  EXPECT_TRUE(WriteNew(files, folder).ok());
  return files.operations();
}

// The newest is step 1 or 2 and whole; a store that starts now cleans up and can write.
void ExpectOldOrNew(const TestFolder& folder) {
  FaultFileSystem files({});
  CheckpointStore store(files, Options(folder));
  const auto found = store.FindNewest();
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(found->newest.has_value()) << "neither the old nor the new checkpoint";
  EXPECT_TRUE(TinyState(found->newest->step().value()).Equals(*found->newest));
  EXPECT_TRUE(found->rejected.empty()) << found->rejected[0].reason;
  ASSERT_TRUE(store.Prepare().ok());
  ASSERT_TRUE(store.Write(TinyState(3).Content()).ok());
  EXPECT_EQ(Names(folder / "checkpoints"), (std::set<std::string>{".writer", "step-00000003"}));
}

// Writes step 2 over step 1 once for each of its file operations, with `fault` at that one; `write`
// does it, or has it done, and says what must hold before the next start cleans up.
void AtEveryOperation(Fault fault,
                      absl::FunctionRef<void(const TestFolder&, FaultFileSystem&)> write) {
  const int64_t operations = OperationsOfOneWrite();
  ASSERT_GT(operations, 30);
  for (int64_t k = 0; k < operations; ++k) {
    SCOPED_TRACE(k);
    const TestFolder folder;
    WriteOld(folder);
    FaultFileSystem files({fault, k});
    ASSERT_NO_FATAL_FAILURE(write(folder, files));
    ASSERT_NO_FATAL_FAILURE(ExpectOldOrNew(folder));
  }
}

TEST(OldOrNewNeverNeither, ACrashAtEveryOperation) {
  AtEveryOperation(Fault::kCrash, [](const TestFolder& folder, FaultFileSystem& files) {
    EXPECT_FALSE(WriteNew(files, folder).ok());
  });
}

TEST(OldOrNewNeverNeither, LostPowerAtEveryOperationTakesBackAllThatWasNotSynced) {
  AtEveryOperation(Fault::kCrash, [](const TestFolder& folder, FaultFileSystem& files) {
    EXPECT_FALSE(WriteNew(files, folder).ok());
    files.LosePower();
  });
}

TEST(OldOrNewNeverNeither, AFullDiskAtEveryOperation) {
  AtEveryOperation(Fault::kDiskFull, [](const TestFolder& folder, FaultFileSystem& files) {
    const absl::Status status = WriteNew(files, folder);
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    for (const std::string& name : Names(folder / "checkpoints")) {
      EXPECT_FALSE(name.rfind(".writing", 0) == 0) << name << " takes space on a full disk";
    }
  });
}

TEST(OldOrNewNeverNeither, OneErrorAtEveryOperation) {
  AtEveryOperation(Fault::kOneError, [](const TestFolder& folder, FaultFileSystem& files) {
    EXPECT_FALSE(WriteNew(files, folder).ok());
  });
}

TEST(OldOrNewNeverNeither, SigkillAtEveryOperation) {
  AtEveryOperation(Fault::kKill, [](const TestFolder& folder, FaultFileSystem& files) {
    const pid_t child = fork();
    if (child == 0) {
      WriteNew(files, folder).IgnoreError();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  });
}

TEST(OldOrNewNeverNeither, LostPowerAfterSuccessKeepsTheNewOne) {
  for (int keep : {1, 2}) {  // with and without something to prune
    const TestFolder folder;
    WriteOld(folder);
    FaultFileSystem files({});
    CheckpointStore store(files, Options(folder, keep));
    ASSERT_TRUE(store.Write(TinyState(2).Content()).ok());
    files.LosePower();
    const auto found = store.FindNewest();
    ASSERT_TRUE(found.ok() && found->newest.has_value());
    EXPECT_TRUE(TinyState(2).Equals(*found->newest)) << keep;
  }
}

// The model of lost power must be able to fail: without the syncs it loses the checkpoint.
TEST(FaultFileSystem, LosesWhatWasNotSynced) {
  const TestFolder folder;
  FaultFileSystem files({});
  {
    const auto file = files.Create(folder / "f");
    ASSERT_TRUE(file.ok());
    const std::vector<std::byte> bytes(10);
    ASSERT_TRUE((*file)->Append(bytes).ok() && (*file)->Sync().ok());
    ASSERT_TRUE((*file)->Append(bytes).ok() && (*file)->Close().ok());
    ASSERT_TRUE(files.SyncDirectory(folder.path()).ok());
  }
  ASSERT_TRUE(files.MakeDirectory(folder / "d").ok());
  ASSERT_TRUE(files.Rename(folder / "f", folder / "g").ok());
  files.LosePower();
  EXPECT_EQ(Names(folder.path()), std::set<std::string>{"f"});
  EXPECT_EQ(ReadText(folder / "f").size(), 10u);
}

}  // namespace
}  // namespace espalier
