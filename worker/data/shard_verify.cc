#include "worker/data/shard_verify.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"

namespace espalier {
namespace {

constexpr char kPassedName[] = ".verified.json";
constexpr int64_t kPassedBytesMax = 64 << 20;
constexpr int64_t kReportEveryBytes = 64 << 20;

// The field's name differs: macOS has st_ctimespec, others st_ctim.
template <typename Stat>
timespec ChangeTime(const Stat& info) {
  if constexpr (requires { info.st_ctimespec; }) {
    return info.st_ctimespec;
  } else {
    return info.st_ctim;
  }
}

absl::Status Advise(const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(status.message(),
                                   "; copy the folder again from a good node, or run "
                                   "`espalier data prepare` again"));
}

// What a file must look like to be the one that passed. The time of change (unlike that of
// modification) cannot be set by copying tools, so any rewrite shows.
std::string Fingerprint(const struct stat& info, const TokenShard& shard) {
  const timespec changed = ChangeTime(info);
  return absl::StrCat(info.st_dev, ":", info.st_ino, ":", info.st_size, ":", changed.tv_sec, ".",
                      changed.tv_nsec, ":", shard.sha256);
}

struct ShardFile {
  const TokenShard* shard = nullptr;
  std::string path;
  std::string fingerprint;
  int64_t bytes = 0;
};

absl::StatusOr<ShardFile> CheckSizeAndHeader(const std::string& folder, const TokenShard& shard,
                                             int token_bytes) {
  ShardFile file{.shard = &shard, .path = JoinPath(folder, shard.file)};
  const int fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) {
    return absl::DataLossError(absl::StrCat("shard ", file.path, " is missing"));
  }
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open shard ", file.path));
  const absl::Cleanup close_it = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("stat ", file.path));
  std::array<std::byte, kShardHeaderBytes> header_bytes;
  const ssize_t got = pread(fd, header_bytes.data(), header_bytes.size(), 0);
  if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read shard ", file.path));
  ASSIGN_OR_RETURN(const ShardHeader header,
                   DecodeShardHeader(absl::MakeConstSpan(header_bytes).subspan(0, got),
                                     absl::StrCat("shard ", file.path)));
  if (header.token_bytes != token_bytes || header.tokens != shard.tokens) {
    return absl::DataLossError(absl::StrCat("shard ", file.path, " holds ", header.tokens,
                                            " tokens of ", header.token_bytes,
                                            " bytes; the manifest says ", shard.tokens, " of ",
                                            token_bytes, ": it belongs to other data"));
  }
  file.bytes = static_cast<int64_t>(kShardHeaderBytes) + header.tokens * token_bytes;
  if (info.st_size != file.bytes) {
    return absl::DataLossError(absl::StrCat("shard ", file.path, " has ", info.st_size,
                                            " bytes, should have ", file.bytes,
                                            info.st_size < file.bytes ? " (cut)" : " (too long)"));
  }
  file.fingerprint = Fingerprint(info, shard);
  return file;
}

// The fingerprints that have passed before; an unreadable record counts as none.
std::set<std::string> ReadPassed(const std::string& folder) {
  const absl::StatusOr<std::string> text =
      PosixFileSystem().Read(JoinPath(folder, kPassedName), kPassedBytesMax);
  if (!text.ok()) return {};
  const absl::StatusOr<nlohmann::json> json = ParseJsonObject(*text);
  if (!json.ok()) return {};
  const auto passed = ArrayField(*json, "passed");
  if (!passed.ok()) return {};
  std::set<std::string> fingerprints;
  for (const nlohmann::json& entry : **passed) {
    if (entry.is_string()) fingerprints.insert(entry.get<std::string>());
  }
  return fingerprints;
}

// Only saves time: a failure (read-only folder) costs a hash at the next start and nothing else.
void WritePassed(const std::string& folder, const std::vector<ShardFile>& files) {
  nlohmann::json json;
  json["about"] = "shards whose SHA-256 was right: device:inode:size:changed:sha256";
  for (const ShardFile& file : files) json["passed"].push_back(file.fingerprint);
  WriteFileAtomically(PosixFileSystem(), JoinPath(folder, kPassedName), json.dump(1)).IgnoreError();
}

absl::Status CheckHashes(const std::vector<const ShardFile*>& files,
                         const Dataset::Options& options) {
  int64_t total = 0, done = 0, reported = 0;
  for (const ShardFile* file : files) total += file->bytes;
  const auto progress = [&](int64_t bytes) {
    done += bytes;
    if (!options.progress || (done - reported < kReportEveryBytes && done < total)) return;
    reported = done;
    options.progress(done, total);
  };
  for (const ShardFile* file : files) {
    ASSIGN_OR_RETURN(const FileDigest digest, Sha256OfFile(file->path, progress));
    if (digest.sha256 == file->shard->sha256) continue;
    return absl::DataLossError(absl::StrCat("shard ", file->path, " was altered: its SHA-256 is ",
                                            digest.sha256, ", the manifest says ",
                                            file->shard->sha256));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyShards(const std::string& folder, const TokenManifest& manifest,
                          const Dataset::Options& options) {
  std::vector<ShardFile> files;
  for (const auto& [name, split] : manifest.splits) {
    for (const TokenShard& shard : split.shards) {
      absl::StatusOr<ShardFile> file = CheckSizeAndHeader(folder, shard, manifest.token_bytes);
      if (!file.ok()) return Advise(file.status());
      files.push_back(*std::move(file));
    }
  }
  std::set<std::string> passed;
  if (options.verify == Dataset::Verify::kOncePerFile) passed = ReadPassed(folder);
  std::vector<const ShardFile*> unknown;
  for (const ShardFile& file : files) {
    if (passed.count(file.fingerprint) == 0) unknown.push_back(&file);
  }
  if (unknown.empty()) return absl::OkStatus();
  if (const absl::Status status = CheckHashes(unknown, options); !status.ok()) {
    return Advise(status);
  }
  WritePassed(folder, files);
  return absl::OkStatus();
}

}  // namespace espalier
