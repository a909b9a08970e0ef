#include <mach-o/dyld.h>
#include <sys/param.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "coordinator/ctl/handover.h"

namespace espalier::ctl {

absl::StatusOr<std::string> ProgramFolder() {
  std::array<char, MAXPATHLEN> path;
  uint32_t size = path.size();
  if (_NSGetExecutablePath(path.data(), &size) != 0) {
    return absl::InternalError("the path of the program is too long");
  }
  std::array<char, MAXPATHLEN> resolved;
  if (realpath(path.data(), resolved.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, "cannot resolve the path of the program");
  }
  const std::string program(resolved.data());
  return program.substr(0, program.rfind('/'));
}

}  // namespace espalier::ctl
