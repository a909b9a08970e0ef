// A disk that is really full: a small file system of its own, seen by a child process only.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/journal/sqlite_journal.h"
#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

// Runs `body` in a child on a file system of 12 MB at `folder`; what it says went wrong, or "".
std::string OnSmallDisk(const std::string& folder, const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const bool alone = unshare(CLONE_NEWNS) == 0;
    std::string said = "the test may not make a mount namespace";
    if (alone && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=12m") == 0) {
      said = body();
    }
    [[maybe_unused]] const ssize_t written = write(ends[1], said.data(), said.size());
    _exit(0);
  }
  close(ends[1]);
  std::string said(4096, '\0');
  const ssize_t got = read(ends[0], said.data(), said.size());
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) return absl::StrCat("the child ended with status ", status);
  said.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return said;
}

void FillDisk(const std::string& file) {
  std::ofstream out(file, std::ios::app);
  const std::string piece(4096, 'x');
  while (out << piece << std::flush) continue;
}

JournalBatch Batch(int i) {
  return {.jobs = {{JobId(absl::StrCat("job", i)), std::string(2000, 'r')}}};
}

TEST(FullDisk, TransitionsAreWrittenFromTheReserveUntilItIsUsedUpAndThenRefused) {
  const ScratchFolder folder;
  const auto body = [&]() -> std::string {
    auto journal = SqliteJournal::Open(folder.path("journal.sqlite"));
    if (!journal.ok()) return journal.status().ToString();
    if (!(*journal)->Commit(Batch(0)).ok()) return "the first commit failed";
    if (!std::filesystem::exists(folder.path("journal.sqlite.reserve"))) return "no reserve";
    FillDisk(folder.path("other"));
    for (int i = 1; i <= 100; ++i) {
      const absl::Status status = (*journal)->Commit(Batch(i));
      if (!status.ok()) return absl::StrCat("commit ", i, ": ", status.ToString());
    }
    FillDisk(folder.path("other"));
    absl::Status refused;
    for (int i = 0; i < 5000 && refused.ok(); ++i) refused = (*journal)->Commit(Batch(i));
    if (!absl::IsResourceExhausted(refused)) return absl::StrCat("not full: ", refused.ToString());
    std::filesystem::remove(folder.path("other"));
    const absl::Status again = (*journal)->Commit(Batch(7));
    if (!again.ok()) return absl::StrCat("after space was made: ", again.ToString());
    return (*journal)->Load()->jobs.size() >= 101 ? "" : "rows are missing";
  };
  EXPECT_EQ(OnSmallDisk(folder.path(""), body), "");
}

}  // namespace
}  // namespace espalier
