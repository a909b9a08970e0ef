// The part of process.h that reads /proc.
#include <dirent.h>

#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/runtime/process.h"

namespace espalier {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

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
  static const std::string* const boot =
      new std::string(ReadAll("/proc/sys/kernel/random/boot_id").substr(0, 36));
  return ProcessIdentity{pid, absl::StrCat(*boot, "/", fields[kStartTime])};
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
