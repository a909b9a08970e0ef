// The part of process.h that reads /proc.
#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/platform/process.h"

namespace espalier {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

const std::string& BootId() {
  constexpr size_t kUuidLength = 36;
  static const std::string& id =
      *new std::string(ReadAll("/proc/sys/kernel/random/boot_id").substr(0, kUuidLength));
  return id;
}

absl::StatusOr<ProcessIdentity> IdentifyProcess(int64_t pid) {
  const std::string stat = ReadAll(absl::StrCat("/proc/", pid, "/stat"));
  // The second field, the name, is in parentheses and may hold anything; what follows the last one
  // is plain: state is the third field of the line, the start time in clock ticks the 22nd.
  const size_t end_of_name = stat.rfind(')');
  if (pid <= 0 || end_of_name == std::string::npos) {
    return absl::NotFoundError(absl::StrCat("there is no process ", pid));
  }
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(end_of_name + 1), ' ', absl::SkipEmpty());
  constexpr size_t kState = 0, kStartTime = 19;
  if (fields.size() <= kStartTime) {
    return absl::InternalError(absl::StrCat("cannot read /proc/", pid, "/stat: '", stat, "'"));
  }
  if (fields[kState] == "Z" || fields[kState] == "X") {
    return absl::NotFoundError(absl::StrCat("process ", pid, " has ended"));
  }
  return ProcessIdentity{pid, absl::StrCat(BootId(), "/", fields[kStartTime])};
}

void CloseDescriptors(int first, int last) {
#ifdef SYS_close_range
  if (syscall(SYS_close_range, static_cast<unsigned>(first), static_cast<unsigned>(last), 0u) == 0)
    return;
#endif
  constexpr int kMost = 65536;  // what kernels before 5.9 can be asked to look through
  for (int fd = first; fd <= std::min(last, kMost); ++fd) close(fd);
}

std::vector<int64_t> ListProcessIds() {
  std::vector<int64_t> pids;
  DIR* folder = opendir("/proc");
  if (folder == nullptr) return pids;
  while (const dirent* entry = readdir(folder)) {
    int64_t pid = 0;
    if (absl::SimpleAtoi(entry->d_name, &pid)) pids.push_back(pid);
  }
  closedir(folder);
  return pids;
}

}  // namespace espalier
