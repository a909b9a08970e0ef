#include "common/rpc/local_access.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/address.h"
#include "common/base/file_system.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/rpc/pem_file.h"

namespace espalier {
namespace {

// sun_path of macOS, the shortest, without its closing zero; so that a folder that one system takes
// does for all.
constexpr size_t kSocketPathMax = 103;
constexpr char kScheme[] = "unix:";
constexpr size_t kTokenBytes = 32;
constexpr int64_t kSmallFile = 4096;

bool IsFolder(absl::string_view where) {
  return absl::StrContains(where, '/') || absl::StartsWith(where, ".") ||
         absl::StartsWith(where, "~");
}

absl::StatusOr<std::string> Absolute(const std::string& configured) {
  ASSIGN_OR_RETURN(const std::string path, ExpandHome(configured));
  std::error_code error;
  std::string result = std::filesystem::absolute(path, error).lexically_normal().string();
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  while (result.size() > 1 && result.back() == '/') result.pop_back();
  return result;
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadPemFile(path));
  const std::string token(absl::StripAsciiWhitespace(text));
  if (token.size() == 2 * kTokenBytes &&
      std::all_of(token.begin(), token.end(), absl::ascii_isxdigit)) {
    return token;
  }
  return absl::UnauthenticatedError(absl::StrCat(
      path,
      " holds no token of espalierd (64 hexadecimal digits); if it is one of its state "
      "folder, remove it, and the next espalierd makes another"));
}

// Whether the espalierd of this folder said that it listens at `address`.
bool ListensAt(const std::string& state_dir, absl::string_view address) {
  const absl::StatusOr<std::string> text =
      PosixFileSystem().Read(JoinPath(state_dir, "address"), kSmallFile);
  if (!text.ok()) return false;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (line == absl::StrCat("grpc=", address)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<std::string> SocketPath(const std::string& state_dir) {
  std::string path = JoinPath(state_dir, "espalierd.sock");
  if (path.size() <= kSocketPathMax) return path;
  return absl::InvalidArgumentError(absl::StrCat(
      "the path of the Unix socket, ", path, ", has ", path.size(),
      " bytes; allowed: ", kSocketPathMax,
      ", because systems take no longer one. Give a shorter state folder, for instance a symbolic "
      "link to this one (ln -s ",
      state_dir,
      " /SHORT; --state-dir /SHORT), to espalierd and "
      "espalier alike"));
}

absl::StatusOr<std::string> CoordinatorAddress(const std::string& where) {
  if (absl::StartsWith(where, kScheme)) return where;
  if (!IsFolder(where)) {
    RETURN_IF_ERROR(ParseAddress(where).status());
    return where;
  }
  ASSIGN_OR_RETURN(const std::string folder, Absolute(where));
  ASSIGN_OR_RETURN(const std::string path, SocketPath(folder));
  return absl::StrCat(kScheme, path);
}

std::optional<std::string> SocketOf(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, kScheme)) return std::nullopt;
  return std::string(address);
}

std::optional<std::string> SocketOfOwn(absl::string_view address) {
  const absl::StatusOr<std::string> folder = ExpandHome(kDefaultStateDir);
  if (!folder.ok() || SocketOf(address) || !ListensAt(*folder, address)) return std::nullopt;
  const absl::StatusOr<std::string> path = SocketPath(*folder);
  return path.ok() ? std::optional<std::string>(*path) : std::nullopt;
}

absl::StatusOr<std::string> TakeToken(const std::string& state_dir) {
  const std::string path = JoinPath(state_dir, "token");
  const absl::Status written = WritePemFile(path, absl::StrCat(RandomHex(kTokenBytes), "\n"),
                                            PemKind::kKey, Overwrite::kNever);
  if (!written.ok() && !absl::IsAlreadyExists(written)) return written;
  return ReadToken(path);
}

absl::StatusOr<std::string> FindToken(const std::string& address, const std::string& file) {
  if (SocketOf(address).has_value() || !IsLoopback(address)) return "";
  if (!file.empty()) return ReadToken(file);
  const absl::StatusOr<std::string> folder = ExpandHome(kDefaultStateDir);
  if (!folder.ok() || !ListensAt(*folder, address)) return "";
  return ReadToken(JoinPath(*folder, "token"));
}

}  // namespace espalier
