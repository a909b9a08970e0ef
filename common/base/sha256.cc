#include "common/base/sha256.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace espalier {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  ESPALIER_CHECK(
      context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
      "OpenSSL has no SHA-256");
}

void Sha256::Update(absl::Span<const std::byte> bytes) {
  ESPALIER_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1,
                 "SHA-256 refused its input");
}

std::string Sha256::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  ESPALIER_CHECK(EVP_DigestFinal_ex(context_.get(), digest, &size) == 1, "SHA-256 did not finish");
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

std::string Sha256Hex(absl::string_view text) {
  Sha256 hash;
  hash.Update({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  return hash.Finish();
}

std::string HmacSha256Hex(absl::string_view key, absl::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  ESPALIER_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                      reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest,
                      &size) != nullptr,
                 "OpenSSL has no HMAC with SHA-256");
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

std::string RandomHex(int bytes) {
  std::string random(static_cast<size_t>(bytes), '\0');
  ESPALIER_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(random.data()), bytes) == 1,
                 "OpenSSL has no random bytes");
  return absl::BytesToHexString(random);
}

bool SameSecret(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::StatusOr<FileDigest> Sha256OfFile(const std::string& path,
                                        const std::function<void(int64_t bytes)>& progress,
                                        const std::function<bool()>& cancelled) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  const absl::Cleanup close_it = [fd] { close(fd); };
  std::vector<std::byte> buffer(size_t{1} << 20);
  Sha256 hash;
  FileDigest digest;
  for (;;) {
    if (cancelled && cancelled()) {
      return absl::CancelledError(
          absl::StrCat("reading ", path, " was given up after ", digest.bytes, " bytes"));
    }
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    if (got == 0) break;
    hash.Update(absl::MakeConstSpan(buffer).subspan(0, static_cast<size_t>(got)));
    digest.bytes += got;
    if (progress) progress(got);
  }
  digest.sha256 = hash.Finish();
  return digest;
}

}  // namespace espalier
