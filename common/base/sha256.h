// SHA-256 (FIPS 180-4) of bytes and of files, and what else of OpenSSL needs no connection: keyed
// hashes and random bytes. Used by worker/data, worker/state and worker/task for manifests,
// datasets and checkpoints, by worker/sync, coordinator/ and common/rpc for names and secrets. One
// object belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

struct evp_md_ctx_st;

namespace espalier {

class Sha256 {
 public:
  Sha256();
  void Update(absl::Span<const std::byte> bytes);
  // Lower-case hex of everything so far; the object must not be used afterwards.
  std::string Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

std::string Sha256Hex(absl::string_view text);

// HMAC-SHA-256 (RFC 2104) of the text, in lower-case hex: who does not know the key cannot make it.
std::string HmacSha256Hex(absl::string_view key, absl::string_view text);

// Bytes that nobody can guess, in hex.
std::string RandomHex(int bytes);
// Equal, in a time that tells nothing of where they differ.
bool SameSecret(absl::string_view a, absl::string_view b);

struct FileDigest {
  int64_t bytes = 0;
  std::string sha256;
};
// Reads the file once, in pieces of 1 MiB; `progress` (may be empty) is told the size of each.
// CANCELLED once `cancelled` (may be empty), which is asked before each, says so.
absl::StatusOr<FileDigest> Sha256OfFile(const std::string& path,
                                        const std::function<void(int64_t bytes)>& progress = {},
                                        const std::function<bool()>& cancelled = {});

}  // namespace espalier
