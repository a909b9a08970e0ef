// The part of process.h that asks the XNU kernel.
#include <libproc.h>
#include <sys/proc_info.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/platform/process.h"

namespace espalier {

// Not the time of the boot: the kernel moves it whenever the clock is set.
const std::string& BootId() {
  static const std::string& id = *new std::string([] {
    char text[64] = {};
    size_t size = sizeof(text) - 1;
    return sysctlbyname("kern.bootsessionuuid", text, &size, nullptr, 0) == 0 ? std::string(text)
                                                                              : std::string();
  }());
  return id;
}

absl::StatusOr<ProcessIdentity> IdentifyProcess(int64_t pid) {
  proc_bsdinfo info = {};
  const int got = proc_pidinfo(static_cast<int>(pid), PROC_PIDTBSDINFO, 0, &info, sizeof(info));
  constexpr uint32_t kZombie = 5;  // SZOMB of sys/proc.h
  if (pid <= 0 || got != static_cast<int>(sizeof(info)) || info.pbi_status == kZombie) {
    return absl::NotFoundError(absl::StrCat("there is no process ", pid));
  }
  return ProcessIdentity{
      pid, absl::StrCat(BootId(), "/", info.pbi_start_tvsec, ".", info.pbi_start_tvusec)};
}

void CloseDescriptors(int first, int last) {
  proc_fdinfo open_ones[4096];
  const int got = proc_pidinfo(getpid(), PROC_PIDLISTFDS, 0, open_ones, sizeof(open_ones));
  if (got > 0 && got < static_cast<int>(sizeof(open_ones))) {
    for (int i = 0; i < got / static_cast<int>(sizeof(proc_fdinfo)); ++i) {
      const int fd = open_ones[i].proc_fd;
      if (fd >= first && fd <= last) close(fd);
    }
    return;
  }
  constexpr int kMost = 65536;
  for (int fd = first; fd <= std::min(last, kMost); ++fd) close(fd);
}

std::vector<int64_t> ListProcessIds() {
  // Asked for twice: processes may start between the count and the list, hence the slack.
  const int count = proc_listallpids(nullptr, 0);
  std::vector<pid_t> raw(count > 0 ? static_cast<size_t>(count) + 64 : 4096);
  const int got = proc_listallpids(raw.data(), static_cast<int>(raw.size() * sizeof(pid_t)));
  std::vector<int64_t> pids;
  for (int i = 0; i < got; ++i) pids.push_back(raw[static_cast<size_t>(i)]);
  return pids;
}

}  // namespace espalier
