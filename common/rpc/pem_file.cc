#include "common/rpc/pem_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr size_t kLargestFile = 1 << 20;

absl::Status WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, "write");
    text.remove_prefix(static_cast<size_t>(written));
  }
  if (fsync(fd) != 0) return absl::ErrnoToStatus(errno, "sync");
  return absl::OkStatus();
}

// link() fails where rename() would replace: it is the atomic form of "only if absent".
absl::Status Publish(const std::string& temporary, const std::string& path, Overwrite overwrite) {
  if (overwrite == Overwrite::kWhenPresent) {
    if (rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  if (link(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  if (errno == EEXIST) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " exists and was left as it is; --force replaces it"));
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
}

}  // namespace

absl::StatusOr<std::string> ReadPemFile(const std::string& configured_path) {
  ASSIGN_OR_RETURN(const std::string path, ExpandHome(configured_path));
  const auto failed = [&path](absl::string_view why) {
    return absl::UnauthenticatedError(absl::StrCat("cannot read ", path, ": ", why));
  };
  const absl::StatusOr<std::string> here = ExpandHome(path);
  if (!here.ok()) return failed(here.status().message());
  const int fd = open(here->c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failed(std::strerror(errno));
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  std::string text;
  char buffer[4096];
  while (text.size() <= kLargestFile) {
    const ssize_t count = read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed(std::strerror(errno));
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
  }
  return failed("larger than 1 MiB, so not a PEM file");
}

absl::Status WritePemFile(const std::string& path, absl::string_view text, PemKind kind,
                          Overwrite overwrite) {
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  const int fd = mkstemp(temporary.data());
  if (fd < 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write in the folder of ", path));
  const auto remover = absl::MakeCleanup([&temporary] { unlink(temporary.c_str()); });
  const absl::Status written = WriteAll(fd, text);
  const bool mode_set = fchmod(fd, kind == PemKind::kKey ? 0600 : 0644) == 0;
  const bool closed = close(fd) == 0;
  if (!written.ok()) {
    return absl::Status(written.code(),
                        absl::StrCat("cannot write ", path, ": ", written.message()));
  }
  if (!mode_set || !closed) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  return Publish(temporary, path, overwrite);
}

}  // namespace espalier
