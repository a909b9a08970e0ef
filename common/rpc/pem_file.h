// PEM files: where a program's TLS identity lies, and reading and writing of them, whole or not at
// all, keys for the owner only. Used by common/rpc, coordinator/ and worker/run.h, which are told
// where their files are. Any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// PEM files as `espalier pki` makes them.
struct TlsFiles {
  std::string ca;
  std::string certificate;
  std::string key;
};

// UNAUTHENTICATED (the caller has no identity without it) when the file cannot be read; names the
// path and the reason. At most 1 MiB; "~/" is the user's home.
absl::StatusOr<std::string> ReadPemFile(const std::string& path);

enum class PemKind { kCertificate, kKey };      // Modes 0644 and 0600.
enum class Overwrite { kNever, kWhenPresent };  // kNever: ALREADY_EXISTS when the file is there.

// The file appears complete and synced under its name, or not at all.
absl::Status WritePemFile(const std::string& path, absl::string_view text, PemKind kind,
                          Overwrite overwrite);

}  // namespace espalier
