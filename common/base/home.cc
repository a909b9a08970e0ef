#include "common/base/home.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// HOME, or what the user database says (services start without the variable); empty: neither.
std::string HomeFolder() {
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') return home;
  std::vector<char> buffer(1 << 14);
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found) != 0) return "";
  return found == nullptr || found->pw_dir == nullptr ? "" : found->pw_dir;
}

}  // namespace

absl::StatusOr<std::string> ExpandHome(const std::string& path) {
  if (path.empty() || path[0] != '~') return path;
  if (path.size() > 1 && path[1] != '/') {
    return absl::InvalidArgumentError(absl::StrCat(
        "path '", path, "' means another user's home; write that folder out, or begin with '~/'"));
  }
  const std::string home = HomeFolder();
  if (home.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "path '", path, "' needs a home folder, and this user has none; write the path out"));
  }
  return home + path.substr(1);
}

}  // namespace espalier
