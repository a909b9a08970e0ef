#include "worker/data/shard_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
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
std::string Fingerprint(const struct stat& info, const DataShard& shard) {
  const timespec changed = ChangeTime(info);
  return absl::StrCat(info.st_dev, ":", info.st_ino, ":", info.st_size, ":", changed.tv_sec, ".",
                      changed.tv_nsec, ":", shard.sha256);
}

struct ShardFile {
  const DataShard* shard = nullptr;
  std::string path;
  std::string fingerprint;
  int64_t bytes = 0;
};

// `wanted`: what the manifest says of the shard.
absl::StatusOr<ShardFile> CheckSizeAndHeader(const std::string& folder, const DataShard& shard,
                                             const ShardHeader& wanted) {
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
  if (header != wanted) {
    return absl::DataLossError(absl::StrCat("shard ", file.path, " holds ", Describe(header),
                                            "; the manifest says ", Describe(wanted),
                                            ": it belongs to other data"));
  }
  file.bytes = static_cast<int64_t>(kShardHeaderBytes) + header.count * header.item_bytes;
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
void WritePassed(const std::string& folder, const std::set<std::string>& fingerprints) {
  nlohmann::json json;
  json["about"] = "shards whose SHA-256 was right: device:inode:size:changed:sha256";
  json["passed"] = fingerprints;
  WriteFileAtomically(PosixFileSystem(), JoinPath(folder, kPassedName), json.dump(1)).IgnoreError();
}

// Calls `passed` after each file that is right, so that a start which is cut short is no loss.
absl::Status CheckHashes(const std::vector<const ShardFile*>& files, const VerifyOptions& options,
                         const std::function<void(const ShardFile&)>& passed) {
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
    if (digest.sha256 == file->shard->sha256) {
      passed(*file);
      continue;
    }
    return absl::DataLossError(absl::StrCat("shard ", file->path, " was altered: its SHA-256 is ",
                                            digest.sha256, ", the manifest says ",
                                            file->shard->sha256));
  }
  return absl::OkStatus();
}

// They are small.
absl::Status CheckFiles(const std::string& folder, const std::vector<DataFile>& files) {
  for (const DataFile& file : files) {
    const std::string path = JoinPath(folder, file.file);
    const absl::StatusOr<FileDigest> digest = Sha256OfFile(path, [](int64_t) {});
    if (digest.ok() && digest->sha256 == file.sha256) continue;
    return Advise(absl::DataLossError(
        absl::StrCat(path, digest.ok() ? " was altered: its SHA-256 is not the one of the manifest"
                                       : " cannot be read, and the manifest names it")));
  }
  return absl::OkStatus();
}

// Shards mapped one after the other, as one row of items.
class MappedShards {
 public:
  explicit MappedShards(size_t item_bytes) : item_bytes_(item_bytes) {}

  absl::Status Add(const std::string& folder, const DataShard& shard) {
    Piece piece{.begin = size_, .path = JoinPath(folder, shard.file)};
    ASSIGN_OR_RETURN(piece.file, MappedFile::Open(piece.path));
    if (piece.file.bytes().size() !=
        kShardHeaderBytes + static_cast<size_t>(shard.count) * item_bytes_) {
      return absl::DataLossError(
          absl::StrCat("shard ", piece.path, " changed its size while it was being opened"));
    }
    size_ += shard.count;
    pieces_.push_back(std::move(piece));
    return absl::OkStatus();
  }

  int64_t size() const { return size_; }

  // Items from `begin`, which must exist, to the end of their shard.
  struct Run {
    const std::byte* items = nullptr;
    int64_t count = 0;
    const std::string& path;
  };
  Run From(int64_t begin) const {
    const auto piece =
        std::prev(std::upper_bound(pieces_.begin(), pieces_.end(), begin,
                                   [](int64_t at, const Piece& p) { return at < p.begin; }));
    const int64_t end = std::next(piece) == pieces_.end() ? size_ : std::next(piece)->begin;
    const size_t offset = static_cast<size_t>(begin - piece->begin) * item_bytes_;
    return {piece->file.bytes().data() + kShardHeaderBytes + offset, end - begin, piece->path};
  }

 private:
  struct Piece {
    int64_t begin = 0;  // position of its first item in the row
    std::string path;
    MappedFile file;
  };
  size_t item_bytes_;
  int64_t size_ = 0;
  std::vector<Piece> pieces_;
};

template <typename T>
void Widen(const std::byte* from, absl::Span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int64_t>(value);
  }
}

class MappedTokens : public TokenRow {
 public:
  MappedTokens(MappedShards shards, int token_bytes, int64_t vocab_size)
      : shards_(std::move(shards)), token_bytes_(token_bytes), vocab_size_(vocab_size) {}

  int64_t size() const override { return shards_.size(); }

  absl::Status Copy(int64_t begin, absl::Span<int64_t> out) const override {
    if (begin < 0 || begin > size() - static_cast<int64_t>(out.size())) {
      return absl::OutOfRangeError(absl::StrCat("tokens from ", begin, " on: ", out.size(),
                                                " wanted, the split has ", size()));
    }
    while (!out.empty()) {
      const MappedShards::Run run = shards_.From(begin);
      const size_t count = std::min(out.size(), static_cast<size_t>(run.count));
      RETURN_IF_ERROR(CopyRun(run, out.first(count)));
      begin += static_cast<int64_t>(count);
      out.remove_prefix(count);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CopyRun(const MappedShards::Run& run, absl::Span<int64_t> out) const {
    switch (token_bytes_) {
      case 1:
        Widen<uint8_t>(run.items, out);
        break;
      case 2:
        Widen<uint16_t>(run.items, out);
        break;
      default:
        Widen<uint32_t>(run.items, out);
        break;
    }
    for (int64_t id : out) {
      if (id < vocab_size_) continue;
      return absl::DataLossError(absl::StrCat("shard ", run.path, " holds token ", id,
                                              ", the vocabulary ends at ", vocab_size_ - 1));
    }
    return absl::OkStatus();
  }

  MappedShards shards_;
  int token_bytes_;
  int64_t vocab_size_;
};

class MappedExamples : public ExampleIndex {
 public:
  explicit MappedExamples(MappedShards shards) : shards_(std::move(shards)) {}
  int64_t size() const override { return shards_.size(); }
  ExampleSpan At(int64_t example) const override {
    const ExampleEntry entry = Entry(example);
    const int64_t begin = example == 0 ? 0 : Entry(example - 1).end;
    return {.prompt = begin, .completion = entry.completion, .end = entry.end};
  }

 private:
  ExampleEntry Entry(int64_t example) const {
    ExampleEntry entry;
    std::memcpy(&entry, shards_.From(example).items, sizeof(entry));
    return entry;
  }
  MappedShards shards_;
};

class MappedMasked : public MaskedIndex {
 public:
  MappedMasked(MappedShards examples, MappedShards runs)
      : examples_(std::move(examples)), runs_(std::move(runs)) {}
  int64_t size() const override { return examples_.size(); }
  int64_t runs() const override { return runs_.size(); }
  MaskedSpan At(int64_t example) const override {
    const auto entry = Item<MaskedEntry>(examples_, example);
    const auto before = example == 0 ? MaskedEntry{} : Item<MaskedEntry>(examples_, example - 1);
    return {before.end, entry.end, before.runs_end, entry.runs_end};
  }
  TokenRun Run(int64_t run) const override { return Item<TokenRun>(runs_, run); }

 private:
  template <typename T>
  static T Item(const MappedShards& shards, int64_t at) {
    T item;
    std::memcpy(&item, shards.From(at).items, sizeof(item));
    return item;
  }
  MappedShards examples_, runs_;
};

absl::StatusOr<MappedShards> MapShards(const std::string& folder,
                                       const std::vector<DataShard>& shards, int item_bytes) {
  MappedShards mapped(static_cast<size_t>(item_bytes));
  for (const DataShard& shard : shards) RETURN_IF_ERROR(mapped.Add(folder, shard));
  return mapped;
}

// All items of a row, as bytes.
std::string Copied(const MappedShards& shards, size_t item_bytes) {
  std::string bytes;
  for (int64_t at = 0; at < shards.size();) {
    const MappedShards::Run run = shards.From(at);
    bytes.append(reinterpret_cast<const char*>(run.items),
                 static_cast<size_t>(run.count) * item_bytes);
    at += run.count;
  }
  return bytes;
}

absl::StatusOr<std::shared_ptr<const PromptTable>> ReadPrompts(const TokenRow& tokens,
                                                               const MappedShards& entries,
                                                               const MappedShards& records) {
  const std::string bytes = Copied(entries, kExampleEntryBytes);
  std::vector<PromptEntry> table(static_cast<size_t>(entries.size()));
  std::memcpy(table.data(), bytes.data(), bytes.size());
  ASSIGN_OR_RETURN(PromptTable prompts, PromptTable::Create(tokens, table, Copied(records, 1)));
  return std::make_shared<const PromptTable>(std::move(prompts));
}

}  // namespace

absl::Status VerifyFolder(const std::string& folder, const TokenManifest& manifest,
                          const VerifyOptions& options) {
  std::vector<ShardFile> files;
  const auto check = [&](const std::vector<DataShard>& shards, ShardHolds holds) -> absl::Status {
    for (const DataShard& shard : shards) {
      const absl::StatusOr<ShardFile> file =
          CheckSizeAndHeader(folder, shard,
                             {.holds = holds,
                              .item_bytes = ItemBytesOf(holds, manifest.token_bytes),
                              .count = shard.count});
      if (!file.ok()) return Advise(file.status());
      files.push_back(*file);
    }
    return absl::OkStatus();
  };
  for (const auto& [name, split] : manifest.splits) {
    RETURN_IF_ERROR(check(split.shards, ShardHolds::kTokens));
    RETURN_IF_ERROR(check(split.examples, ExampleShardsOf(manifest.holds)));
    RETURN_IF_ERROR(check(split.runs, ShardHolds::kRuns));
    RETURN_IF_ERROR(check(split.records, ShardHolds::kRecords));
  }
  RETURN_IF_ERROR(CheckFiles(folder, manifest.files));
  std::set<std::string> before, passed;
  if (options.verify == VerifyShards::kOncePerFile) before = ReadPassed(folder);
  std::vector<const ShardFile*> unknown;
  for (const ShardFile& file : files) {
    if (before.count(file.fingerprint) == 0) {
      unknown.push_back(&file);
    } else {
      passed.insert(file.fingerprint);
    }
  }
  const absl::Status status = CheckHashes(unknown, options, [&](const ShardFile& file) {
    passed.insert(file.fingerprint);
    WritePassed(folder, passed);
  });
  return status.ok() ? status : Advise(status);
}

absl::StatusOr<SplitRows> MapSplit(const std::string& folder, const TokenManifest& manifest,
                                   const TokenSplit& split) {
  SplitRows rows;
  ASSIGN_OR_RETURN(MappedShards tokens, MapShards(folder, split.shards, manifest.token_bytes));
  rows.tokens =
      std::make_shared<MappedTokens>(std::move(tokens), manifest.token_bytes, manifest.vocab_size);
  if (manifest.holds == DataKind::kText) return rows;
  ASSIGN_OR_RETURN(MappedShards examples, MapShards(folder, split.examples, kExampleEntryBytes));
  if (manifest.holds == DataKind::kPrompts) {
    ASSIGN_OR_RETURN(const MappedShards records, MapShards(folder, split.records, 1));
    ASSIGN_OR_RETURN(rows.prompts, ReadPrompts(*rows.tokens, examples, records));
    return rows;
  }
  if (manifest.holds != DataKind::kMasked) {
    rows.examples = std::make_shared<MappedExamples>(std::move(examples));
    return rows;
  }
  ASSIGN_OR_RETURN(MappedShards runs, MapShards(folder, split.runs, kExampleEntryBytes));
  rows.masked = std::make_shared<MappedMasked>(std::move(examples), std::move(runs));
  return rows;
}

}  // namespace espalier
