#include "worker/task/practice_folder.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

// As checkpoints that are being written, which goes as they do after a crash.
std::string TemporaryPrefix(const std::string& name) {
  return absl::StrCat(".writing-", name, "-");
}

}  // namespace

absl::Status PracticeFolder::WriteMine(const Content& content) {
  FileSystem& files = PosixFileSystem();
  RETURN_IF_ERROR(MakeDurableDirectory(files, place_.folder));
  const std::string prefix = TemporaryPrefix(content.name);
  ASSIGN_OR_RETURN(const std::vector<std::string> there, files.List(place_.folder));
  for (const std::string& name : there) {  // of those who died, or sleep and are not to wake to it
    if (absl::StartsWith(name, prefix)) {
      RETURN_IF_ERROR(files.Remove(JoinPath(place_.folder, name)));
    }
  }
  const std::string path = JoinPath(place_.folder, content.name);
  const std::string temporary = JoinPath(place_.folder, absl::StrCat(prefix, getpid()));
  const absl::Status written = [&]() -> absl::Status {
    const std::string text = content.text();
    ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(temporary));
    RETURN_IF_ERROR(file->Append({reinterpret_cast<const std::byte*>(text.data()), text.size()}));
    RETURN_IF_ERROR(file->Sync());
    RETURN_IF_ERROR(file->Close());
    if (place_.may_write) RETURN_IF_ERROR(place_.may_write());
    if (content.may_replace) RETURN_IF_ERROR(content.may_replace(path));
    return files.Rename(temporary, path);
  }();
  if (written.ok()) return files.SyncDirectory(place_.folder);
  files.Remove(temporary).IgnoreError();
  return written;
}

absl::StatusOr<PracticeFolder::Written> PracticeFolder::Write(const Content& content) {
  absl::Status mine;
  RETURN_IF_ERROR(RunTogether(place_.context, [&] {
    if (place_.writes) mine = WriteMine(content);
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(
      const SharedOutcome taken,
      ShareStatus(place_.context.collective, absl::IsAborted(mine) ? mine : absl::OkStatus()));
  RETURN_IF_ERROR(taken.status);
  if (!mine.ok() && error_.empty()) {
    LogWarning(absl::StrCat(content.name,
                            " could not be written, which is tried again: ", mine.message()));
  }
  error_ = std::string(mine.message());
  struct Told {
    int32_t writes = 0;
    int32_t failed = 0;
  };
  ASSIGN_OR_RETURN(
      const std::vector<Told> all,
      GatherValues(place_.context.collective, Told{place_.writes ? 1 : 0, mine.ok() ? 0 : 1}));
  int32_t writes = 0, failed = 0;
  for (const Told& one : all) {
    writes += one.writes;
    failed += one.failed;
  }
  if (failed == 0) return Written{.has = Has::kAll, .mine = true};
  return Written{.has = failed < writes ? Has::kSome : Has::kNone,
                 .mine = place_.writes && mine.ok()};
}

}  // namespace espalier
