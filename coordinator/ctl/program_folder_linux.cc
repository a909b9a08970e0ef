#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "coordinator/ctl/handover.h"

namespace espalier::ctl {

absl::StatusOr<std::string> ProgramFolder() {
  std::array<char, 4096> path;
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size < 0) return absl::ErrnoToStatus(errno, "cannot read /proc/self/exe");
  const std::string program(path.data(), static_cast<size_t>(size));
  return program.substr(0, program.rfind('/'));
}

}  // namespace espalier::ctl
