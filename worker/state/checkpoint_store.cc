#include "worker/state/checkpoint_store.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

// Names that no reader takes for a checkpoint.
constexpr char kTemporaryPrefix[] = ".writing-";
constexpr char kTrashPrefix[] = ".removing-";
constexpr char kMarkPrefix[] = ".rank-";

// Whose the directory is: a line that no two writers share.
constexpr char kWriterName[] = ".writer";
constexpr int64_t kWriterBytesMax = 4096;
constexpr int kClaimBytes = 8;

std::optional<Step> StepOfName(absl::string_view name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, "step-") || name.size() < 8) return std::nullopt;
  const bool digits =
      std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || !absl::SimpleAtoi(name, &step)) return std::nullopt;
  return Step(step);
}

// No write of this process has the name of another, which may hang and come back.
std::string TemporaryName(absl::string_view name_of_step) {
  static std::atomic<int64_t> writes = 0;
  return absl::StrCat(kTemporaryPrefix, name_of_step, "-", getpid(), "-", ++writes);
}

std::string NameOfStep(Step step) { return absl::StrFormat("step-%08d", step.value()); }

int64_t TotalBytes(const CheckpointManifest& manifest) {
  int64_t bytes = 0;
  for (const CheckpointFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

// Verified, and the step it says is the step of its name.
absl::StatusOr<CheckpointManifest> CheckEntry(FileSystem& files,
                                              const CheckpointStore::Entry& entry,
                                              CheckpointCheck check,
                                              const CheckpointStore::Cancelled& cancelled = {}) {
  ASSIGN_OR_RETURN(CheckpointManifest manifest,
                   CheckCheckpoint(files, entry.folder, check, cancelled));
  if (manifest.step == entry.step) return manifest;
  return absl::DataLossError(absl::StrCat("checkpoint ", entry.folder, " holds step ",
                                          manifest.step.value(), ": the folder was renamed"));
}

}  // namespace

std::string CheckpointStore::Folder(Step step) const {
  return JoinPath(options_.directory, NameOfStep(step));
}

absl::Status CheckpointStore::Prepare() {
  if (options_.permit) RETURN_IF_ERROR(options_.permit());
  RETURN_IF_ERROR(MakeDurableDirectory(files_, options_.directory));
  const std::string claim = absl::StrCat(options_.writer, " (", RandomHex(kClaimBytes), ")\n");
  RETURN_IF_ERROR(WriteFileAtomically(files_, JoinPath(options_.directory, kWriterName), claim));
  claim_ = claim;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(options_.directory));
  for (const std::string& name : names) {
    const bool left_over = absl::StartsWith(name, kTemporaryPrefix) ||
                           absl::StartsWith(name, kTrashPrefix) ||
                           absl::StartsWith(name, kMarkPrefix);
    if (left_over) RETURN_IF_ERROR(files_.Remove(JoinPath(options_.directory, name)));
  }
  return absl::OkStatus();
}

std::string CheckpointStore::MarkPath(absl::string_view mark) const {
  return JoinPath(options_.directory, absl::StrCat(kMarkPrefix, mark));
}

absl::Status CheckpointStore::LeaveMark(absl::string_view mark) {
  RETURN_IF_ERROR(MakeDurableDirectory(files_, options_.directory));
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files_.Create(MarkPath(mark)));
  return file->Close();
}

bool CheckpointStore::HasMark(absl::string_view mark) const {
  return files_.Read(MarkPath(mark), 0).ok();
}

void CheckpointStore::RemoveMark(absl::string_view mark) {
  files_.Remove(MarkPath(mark)).IgnoreError();
}

absl::Status CheckpointStore::CheckWriter() const {
  if (claim_.empty()) return absl::OkStatus();
  if (options_.permit) RETURN_IF_ERROR(options_.permit());
  ASSIGN_OR_RETURN(const std::string claim,
                   files_.Read(JoinPath(options_.directory, kWriterName), kWriterBytesMax));
  if (claim == claim_) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat(options_.directory, " is written by ", absl::StripAsciiWhitespace(claim),
                   " now, not by ", absl::StripAsciiWhitespace(claim_),
                   "; if these are two runs, give each a checkpoint.directory of its own"));
}

absl::StatusOr<std::vector<CheckpointStore::Entry>> CheckpointStore::List() const {
  const absl::StatusOr<std::vector<std::string>> names = files_.List(options_.directory);
  if (absl::IsNotFound(names.status())) return std::vector<Entry>();
  if (!names.ok()) return names.status();
  std::vector<Entry> entries;
  for (const std::string& name : *names) {
    const std::optional<Step> step = StepOfName(name);
    // "step-000000005" would be a second name of step 5.
    if (step && NameOfStep(*step) == name) entries.push_back({*step, Folder(*step)});
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.step < b.step; });
  return entries;
}

absl::StatusOr<Checkpoint> CheckpointStore::Open(Step step) const {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(files_, Folder(step)));
  if (checkpoint.step() == step) return checkpoint;
  return absl::DataLossError(absl::StrCat("checkpoint ", Folder(step), " holds step ",
                                          checkpoint.step().value(), ": the folder was renamed"));
}

absl::StatusOr<FoundCheckpoint> CheckpointStore::FindNewest() const {
  ASSIGN_OR_RETURN(const std::vector<Entry> entries, List());
  FoundCheckpoint found;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    absl::StatusOr<Checkpoint> checkpoint = Open(entry->step);
    if (checkpoint.ok()) {
      found.newest = *std::move(checkpoint);
      break;
    }
    found.rejected.push_back({entry->folder, checkpoint.status()});
  }
  return found;
}

absl::Status CheckpointStore::SetAside(const std::string& folder) {
  for (int number = 1;; ++number) {
    const std::string aside = absl::StrCat(folder, ".bad-", number);
    if (files_.List(aside).ok()) continue;
    return files_.Rename(folder, aside);
  }
}

absl::Status CheckpointStore::Publish(const CheckpointContent& content, const std::string& folder,
                                      const Cancelled& cancelled) {
  const std::string temporary =
      JoinPath(options_.directory, TemporaryName(NameOfStep(content.step)));
  const absl::Status written = [&]() -> absl::Status {
    RETURN_IF_ERROR(files_.Remove(temporary));
    RETURN_IF_ERROR(WriteCheckpointFiles(files_, temporary, content));
    if (cancelled && cancelled()) return absl::CancelledError("given up before it was published");
    RETURN_IF_ERROR(CheckWriter());
    if (files_.List(folder).ok()) RETURN_IF_ERROR(SetAside(folder));
    return files_.Rename(temporary, folder);
  }();
  if (written.ok()) return files_.SyncDirectory(options_.directory);
  files_.Remove(temporary).IgnoreError();
  return written;
}

// One that a stop asked for in the midst of an evaluation was written without the loss of it.
absl::Status CheckpointStore::AddLoss(const CheckpointContent& content, const std::string& folder,
                                      CheckpointManifest manifest) {
  if (manifest.validation_loss || !content.validation_loss) return absl::OkStatus();
  if (!std::isfinite(*content.validation_loss)) return absl::OkStatus();
  manifest.validation_loss = content.validation_loss;
  RETURN_IF_ERROR(CheckWriter());  // all hashes were read since
  return ReplaceCheckpointManifest(files_, folder, manifest);
}

absl::StatusOr<PublishedCheckpoint> CheckpointStore::Write(const CheckpointContent& content,
                                                           const Cancelled& cancelled) {
  RETURN_IF_ERROR(CheckWriter());
  const Entry entry{content.step, Folder(content.step)};
  const auto check = [&] { return CheckEntry(files_, entry, CheckpointCheck::kHashes, cancelled); };
  absl::StatusOr<CheckpointManifest> manifest = check();
  if (absl::IsCancelled(manifest.status())) return manifest.status();
  if (manifest.ok()) {
    const absl::Status added = AddLoss(content, entry.folder, *manifest);
    if (absl::IsAborted(added)) return added;
    if (!added.ok()) {  // it is good all the same
      LogWarning(absl::StrCat(entry.folder, " has no loss: ", added.message()));
    }
  } else {
    RETURN_IF_ERROR(Publish(content, entry.folder, cancelled));
    // Reads back what was written: only a copy that is proved good may replace older ones.
    manifest = check();
    if (!manifest.ok()) return manifest.status();
  }
  return PublishedCheckpoint{entry.folder, TotalBytes(*manifest), Prune(content.step, cancelled)};
}

absl::Status CheckpointStore::Prune(std::optional<Step> good, const Cancelled& cancelled) {
  struct Candidate {
    Entry entry;
    double loss;
  };
  RETURN_IF_ERROR(CheckWriter());
  ASSIGN_OR_RETURN(const std::vector<Entry> entries, List());
  std::vector<Candidate> whole;  // newest first; damaged ones are neither counted nor removed
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const auto manifest = CheckEntry(files_, *entry, CheckpointCheck::kSizes);
    if (!manifest.ok()) continue;
    whole.push_back(
        {*entry, manifest->validation_loss.value_or(std::numeric_limits<double>::infinity())});
  }
  std::set<Step> kept;
  for (const Candidate& candidate : whole) {
    kept.insert(candidate.entry.step);
    if (candidate.entry.step == good) break;
    const absl::Status verified =
        CheckEntry(files_, candidate.entry, CheckpointCheck::kHashes, cancelled).status();
    if (absl::IsCancelled(verified)) return verified;
    if (verified.ok()) break;
  }
  for (size_t i = 0; i < whole.size() && i < static_cast<size_t>(options_.keep); ++i) {
    kept.insert(whole[i].entry.step);
  }
  std::stable_sort(whole.begin(), whole.end(),
                   [](const Candidate& a, const Candidate& b) { return a.loss < b.loss; });
  for (size_t i = 0; i < whole.size() && i < static_cast<size_t>(options_.keep_best); ++i) {
    if (std::isfinite(whole[i].loss)) kept.insert(whole[i].entry.step);
  }
  for (const Candidate& candidate : whole) {
    if (kept.count(candidate.entry.step) > 0) continue;
    // Out of sight first, so that a crash leaves no half-removed checkpoint under a good name.
    const std::string trash =
        JoinPath(options_.directory, absl::StrCat(kTrashPrefix, NameOfStep(candidate.entry.step)));
    RETURN_IF_ERROR(files_.Remove(trash));
    RETURN_IF_ERROR(files_.Rename(candidate.entry.folder, trash));
    RETURN_IF_ERROR(files_.SyncDirectory(options_.directory));
    RETURN_IF_ERROR(files_.Remove(trash));
  }
  return absl::OkStatus();
}

}  // namespace espalier
