#include "tests/worker/support/fault_file_system.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace espalier {

namespace fs = std::filesystem;

class FaultFile : public WritableFile {
 public:
  FaultFile(FaultFileSystem& owner, std::unique_ptr<WritableFile> file,
            std::shared_ptr<FaultFileSystem::Contents> contents)
      : owner_(owner), file_(std::move(file)), contents_(std::move(contents)) {}

  absl::Status Append(absl::Span<const std::byte> bytes) override {
    const bool kill = owner_.plan_.fault == FaultFileSystem::Fault::kKill &&
                      owner_.operations_ == owner_.plan_.operation;
    if (kill) file_->Append(bytes.first(bytes.size() / 2)).IgnoreError();
    const absl::Status status = owner_.Begin(FaultFileSystem::Needs::kSpace);
    if (status.ok()) return file_->Append(bytes);
    if (owner_.Hit()) file_->Append(bytes.first(bytes.size() / 2)).IgnoreError();
    return status;
  }
  absl::Status Sync() override {
    RETURN_IF_ERROR(owner_.Begin(FaultFileSystem::Needs::kSpace));
    contents_->synced = lseek(contents_->descriptor, 0, SEEK_END);
    return absl::OkStatus();
  }
  absl::Status Close() override {
    RETURN_IF_ERROR(owner_.Begin(FaultFileSystem::Needs::kSpace));
    return file_->Close();
  }

 private:
  FaultFileSystem& owner_;
  std::unique_ptr<WritableFile> file_;
  std::shared_ptr<FaultFileSystem::Contents> contents_;
};

FaultFileSystem::~FaultFileSystem() {
  for (const auto& contents : contents_) close(contents->descriptor);
}

absl::Status FaultFileSystem::Begin(Needs needs) {
  const int64_t operation = operations_++;
  const bool hit = operation == plan_.operation;
  switch (plan_.fault) {
    case Fault::kNone:
      return absl::OkStatus();
    case Fault::kDiskFull:
      if (operation < plan_.operation || needs == Needs::kNothing) return absl::OkStatus();
      return absl::ResourceExhaustedError("no space left (injected)");
    case Fault::kOneError:
      return hit ? absl::UnknownError("input/output error (injected)") : absl::OkStatus();
    case Fault::kCrash:
      crashed_ = crashed_ || hit;
      return crashed_ ? absl::AbortedError("crashed (injected)") : absl::OkStatus();
    case Fault::kKill:
      if (hit) kill(getpid(), SIGKILL);
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultFileSystem::Create(const std::string& path) {
  RETURN_IF_ERROR(Begin(Needs::kSpace));
  KeepReplaced(path);
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, PosixFileSystem().Create(path));
  auto contents = std::make_shared<Contents>();
  contents->descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  contents_.push_back(contents);
  changes_.push_back({Change::Kind::kCreated, path, ""});
  return std::make_unique<FaultFile>(*this, std::move(file), contents);
}

absl::StatusOr<std::string> FaultFileSystem::Read(const std::string& path, int64_t limit) {
  if (crashed_) return absl::AbortedError("crashed (injected)");
  return PosixFileSystem().Read(path, limit);
}

absl::StatusOr<std::vector<std::string>> FaultFileSystem::List(const std::string& path) {
  if (crashed_) return absl::AbortedError("crashed (injected)");
  return PosixFileSystem().List(path);
}

absl::Status FaultFileSystem::MakeDirectory(const std::string& path) {
  RETURN_IF_ERROR(Begin(Needs::kSpace));
  if (!fs::exists(path)) changes_.push_back({Change::Kind::kCreated, path, ""});
  return PosixFileSystem().MakeDirectory(path);
}

absl::Status FaultFileSystem::Rename(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(Begin(Needs::kSpace));
  if (fs::is_regular_file(from)) KeepReplaced(to);
  RETURN_IF_ERROR(PosixFileSystem().Rename(from, to));
  for (Change& change : changes_) {  // what happened inside is now found under the new name
    if (absl::StartsWith(change.path, from + "/")) change.path.replace(0, from.size(), to);
  }
  changes_.push_back({Change::Kind::kRenamed, to, from});
  return absl::OkStatus();
}

absl::Status FaultFileSystem::Remove(const std::string& path) {
  const bool fatal = plan_.fault == Fault::kCrash || plan_.fault == Fault::kKill;
  if (fatal && operations_ == plan_.operation) RemoveHalf(path);
  RETURN_IF_ERROR(Begin(Needs::kNothing));
  if (fs::exists(path)) {
    changes_.push_back({Change::Kind::kRemoved, path, Keep(path, ParentPath(ParentPath(path)))});
  }
  return absl::OkStatus();
}

// Lost power brings back the file whose place another is about to take.
void FaultFileSystem::KeepReplaced(const std::string& path) {
  if (!fs::is_regular_file(path)) return;
  changes_.push_back({Change::Kind::kRemoved, path, Keep(path, ParentPath(ParentPath(path)))});
}

// Removing a folder is many removals: the entries that come first are gone, the others are not.
void FaultFileSystem::RemoveHalf(const std::string& path) {
  if (!fs::is_directory(path)) return;
  const auto names = PosixFileSystem().List(path);
  for (size_t i = 0; i < names->size() / 2; ++i) {
    const std::string entry = JoinPath(path, (*names)[i]);
    changes_.push_back({Change::Kind::kRemoved, entry, Keep(entry, ParentPath(ParentPath(path)))});
  }
}

// Moves what is removed out of sight, from where lost power brings it back.
std::string FaultFileSystem::Keep(const std::string& path, const std::string& folder) {
  const std::string graveyard = JoinPath(folder, "graveyard");
  fs::create_directories(graveyard);
  static int count = 0;
  const std::string kept = absl::StrCat(graveyard, "/", getpid(), "-", ++count);
  fs::rename(path, kept);
  return kept;
}

absl::Status FaultFileSystem::SyncDirectory(const std::string& path) {
  RETURN_IF_ERROR(Begin(Needs::kSpace));
  changes_.erase(std::remove_if(changes_.begin(), changes_.end(),
                                [&](const Change& c) { return ParentPath(c.path) == path; }),
                 changes_.end());
  return absl::OkStatus();
}

void FaultFileSystem::LosePower() {
  for (const auto& contents : contents_) {
    ESPALIER_CHECK(ftruncate(contents->descriptor, contents->synced) == 0, "cannot truncate");
  }
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
    switch (change->kind) {
      case Change::Kind::kCreated:
        fs::remove_all(change->path);
        break;
      case Change::Kind::kRenamed:
        fs::rename(change->path, change->from);
        for (auto earlier = change + 1; earlier != changes_.rend(); ++earlier) {
          if (absl::StartsWith(earlier->path, change->path + "/")) {
            earlier->path.replace(0, change->path.size(), change->from);
          }
        }
        break;
      case Change::Kind::kRemoved:
        fs::rename(change->from, change->path);
        break;
    }
  }
  changes_.clear();
}

}  // namespace espalier
