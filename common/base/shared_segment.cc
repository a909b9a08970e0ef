#include "common/base/shared_segment.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr char kPrefix[] = "espalier-";
constexpr size_t kDigits = 18;
static_assert(1 + sizeof(kPrefix) - 1 + kDigits <= SharedSegment::kLongestName);
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr int64_t kEntryBytesMax = 16384;

// What the segment begins with: the registry's file names the same token, or one of the two is of
// another life.
constexpr int64_t kPreambleBytes = 16384;  // pages of every system
constexpr int kTokenBytes = 16;
using Token = std::array<char, size_t{2} * kTokenBytes>;
struct Preamble {
  Token token;
  std::atomic<int64_t> mark;
  std::atomic<int64_t> generation;
};
static_assert(sizeof(Preamble) <= kPreambleBytes && std::atomic<int64_t>::is_always_lock_free);

std::string NameOf(const std::string& registry, const SegmentRecord& record) {
  return kPrefix +
         Sha256Hex(absl::StrCat(registry, "\n", record.job, "\n", record.node, "\n", record.worker))
             .substr(0, kDigits);
}

absl::Status Failed(absl::string_view operation, absl::string_view what) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", operation, " ", what));
}

absl::Status NoRoom(int64_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "there are no ", bytes,
      " bytes of shared memory; on macOS it is the machine's memory that is too small: keep less "
      "of "
      "what is trained in memory (checkpoint.warm_state: false); on Linux make /dev/shm larger "
      "(`mount -o remount,size=90% "
      "/dev/shm`, or `docker run --shm-size`), and see whether `ls -l /dev/shm/espalier-*` shows "
      "what runs that were killed have left"));
}

using Entry = std::map<std::string, std::string>;

std::string ToText(const SegmentRecord& record, const std::string& token) {
  return absl::StrCat("job ", record.job, "\nnode ", record.node, "\nworker ", record.worker,
                      "\nhistory ", record.history, "\nlayout ", record.layout, "\nbytes ",
                      record.bytes, "\nprocess ", getpid(), "\ntoken ", token, "\nend\n");
}

// Absent: it was cut.
std::optional<Entry> FromText(absl::string_view text) {
  if (!absl::EndsWith(text, "\nend\n")) return std::nullopt;
  Entry entry;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> field = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    entry[field.first] = field.second;
  }
  return entry;
}

std::optional<Entry> ReadEntry(int descriptor) {
  std::string text(kEntryBytesMax, '\0');
  const ssize_t size = pread(descriptor, text.data(), text.size(), 0);
  if (size < 0) return std::nullopt;
  return FromText(text.substr(0, static_cast<size_t>(size)));
}

SegmentRecord RecordOf(Entry& entry) {
  SegmentRecord record{.job = entry["job"], .node = entry["node"], .layout = entry["layout"]};
  if (!absl::SimpleAtoi(entry["worker"], &record.worker)) record.worker = -1;
  if (!absl::SimpleAtoi(entry["history"], &record.history)) record.history = -1;
  if (!absl::SimpleAtoi(entry["bytes"], &record.bytes)) record.bytes = -1;
  return record;
}

bool IsOf(const Preamble& preamble, Entry& entry) {
  const std::string& token = entry["token"];
  return token.size() == preamble.token.size() &&
         std::memcmp(preamble.token.data(), token.data(), token.size()) == 0;
}

// Of memory that may be another process's, or of another life.
void ReadPreamble(Entry& entry, RegisteredSegment& segment) {
  const int memory = shm_open(("/" + segment.name).c_str(), O_RDONLY, 0);
  segment.lost = memory < 0 && errno == ENOENT;
  if (memory < 0) return;
  const absl::Cleanup close_it = [memory] { close(memory); };
  struct stat facts {};
  if (fstat(memory, &facts) != 0 || facts.st_size < kPreambleBytes) return;
  void* const at = mmap(nullptr, kPreambleBytes, PROT_READ, MAP_SHARED, memory, 0);
  if (at == MAP_FAILED) return;
  const auto& preamble = *static_cast<const Preamble*>(at);
  if (IsOf(preamble, entry)) {
    segment.mark = preamble.mark.load();
    segment.record.generation = preamble.generation.load();
  }
  munmap(at, kPreambleBytes);
}

bool IsTaken(const std::string& path) {
  const int entry = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (entry < 0) return false;
  const bool taken = flock(entry, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(entry);
  return taken;
}

// The file of that name is the one that is open; not one that its last owner has removed.
bool IsStillThere(int descriptor, const std::string& path) {
  struct stat open_file {};
  struct stat named {};
  return fstat(descriptor, &open_file) == 0 && stat(path.c_str(), &named) == 0 &&
         open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
}

}  // namespace

std::string SharedSegment::EntryPath() const { return JoinPath(registry_, name_); }
std::string SharedSegment::SystemName() const { return "/" + name_; }

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Open(const std::string& registry,
                                                                   const SegmentRecord& record,
                                                                   absl::Duration patience) {
  RETURN_IF_ERROR(PosixFileSystem().MakeDirectory(registry));
  std::error_code error;
  std::string folder = std::filesystem::canonical(registry, error).string();
  if (error) return absl::NotFoundError(absl::StrCat("there is no folder ", registry));
  std::string name = NameOf(folder, record);
  std::unique_ptr<SharedSegment> segment(
      new SharedSegment(std::move(folder), record, std::move(name)));
  RETURN_IF_ERROR(segment->Lock(patience));
  segment->found_ = segment->MapFound();
  if (!segment->found_) {
    if (absl::Status made = segment->MakeAnew(); !made.ok()) {
      segment->Remove();
      return made;
    }
  }
  static_cast<Preamble*>(segment->mapping_)->generation.store(record.generation);
  return segment;
}

SharedSegment::~SharedSegment() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
  if (memory_ >= 0) close(memory_);
  if (entry_ >= 0) close(entry_);
}

absl::Status SharedSegment::Lock(absl::Duration patience) {
  const std::string path = EntryPath();
  const absl::Duration end = RealClock().Monotonic() + patience;
  while (true) {
    entry_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (entry_ < 0) return Failed("open", path);
    const bool locked = flock(entry_, LOCK_EX | LOCK_NB) == 0;
    if (locked && IsStillThere(entry_, path)) return absl::OkStatus();
    if (!locked && errno != EWOULDBLOCK && errno != EINTR) return Failed("lock", path);
    std::optional<Entry> entry = ReadEntry(entry_);
    close(std::exchange(entry_, -1));
    if (!locked && RealClock().Monotonic() >= end) {
      return absl::FailedPreconditionError(absl::StrCat(
          "process ", entry ? (*entry)["process"] : "(unknown)", " has the shared memory ", name_,
          " (", path, ") and goes on; end it, or give one of the two a folder of its own"));
    }
    if (!locked) RealClock().Sleep(kPoll);
  }
}

// False: there is none, or it is not what was asked for.
bool SharedSegment::MapFound() {
  std::optional<Entry> entry = ReadEntry(entry_);
  if (!entry) return false;
  const SegmentRecord left = RecordOf(*entry);
  if (left.layout != record_.layout || left.bytes != record_.bytes ||
      left.history != record_.history) {
    return false;
  }
  memory_ = shm_open(SystemName().c_str(), O_RDWR, 0);
  if (memory_ < 0) return false;
  struct stat facts {};
  const int64_t size = kPreambleBytes + record_.bytes;
  if (fstat(memory_, &facts) != 0 || facts.st_size < size || !Map(size).ok()) return false;
  return IsOf(*static_cast<const Preamble*>(mapping_), *entry);
}

absl::Status SharedSegment::MakeAnew() {
  if (mapping_ != nullptr) munmap(std::exchange(mapping_, nullptr), mapped_);
  if (memory_ >= 0) close(std::exchange(memory_, -1));
  shm_unlink(SystemName().c_str());
  // First the file: what is made is always known.
  const std::string token = RandomHex(kTokenBytes);
  const std::string text = ToText(record_, token);
  if (ftruncate(entry_, 0) != 0 ||
      pwrite(entry_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return Failed("write", EntryPath());
  }
  memory_ = shm_open(SystemName().c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (memory_ < 0) return Failed("make shared memory", name_);
  const int64_t size = kPreambleBytes + record_.bytes;
  if (ftruncate(memory_, size) != 0) return NoRoom(size);
  if (ReserveDescriptor(memory_, 0, kPreambleBytes) != 0) return NoRoom(size);
  RETURN_IF_ERROR(Map(size));
  std::memcpy(static_cast<Preamble*>(mapping_)->token.data(), token.data(), token.size());
  return absl::OkStatus();
}

void SharedSegment::set_mark(int64_t mark) { static_cast<Preamble*>(mapping_)->mark.store(mark); }

absl::Status SharedSegment::Map(int64_t size) {
  mapped_ = static_cast<size_t>(size);
  void* const at = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
  if (at == MAP_FAILED) return NoRoom(size);
  mapping_ = at;
  bytes_ = absl::MakeSpan(static_cast<std::byte*>(at) + kPreambleBytes,
                          static_cast<size_t>(record_.bytes));
  return absl::OkStatus();
}

absl::Status SharedSegment::Reserve(int64_t begin, int64_t size) {
  if (size == 0) return absl::OkStatus();
  const int error = ReserveDescriptor(memory_, kPreambleBytes + begin, size);
  return error == 0 ? absl::OkStatus() : NoRoom(size);
}

// The file last: what is there is always known.
void SharedSegment::Remove() {
  shm_unlink(SystemName().c_str());
  unlink(EntryPath().c_str());
}

absl::StatusOr<std::vector<RegisteredSegment>> ListSegments(const std::string& registry,
                                                            const std::string& node) {
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(registry);
  if (absl::IsNotFound(names.status())) return std::vector<RegisteredSegment>();
  if (!names.ok()) return names.status();
  std::vector<RegisteredSegment> segments;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, kPrefix)) continue;
    const absl::StatusOr<std::string> text =
        PosixFileSystem().Read(JoinPath(registry, name), kEntryBytesMax);
    std::optional<Entry> entry = text.ok() ? FromText(*text) : std::nullopt;
    if (!entry || (*entry)["node"] != node) continue;
    RegisteredSegment& segment = segments.emplace_back();
    segment.name = name;
    segment.record = RecordOf(*entry);
    segment.taken = IsTaken(JoinPath(registry, name));
    ReadPreamble(*entry, segment);
  }
  return segments;
}

bool RemoveSegment(const std::string& registry, const std::string& name) {
  const std::string path = JoinPath(registry, name);
  const int entry = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (entry < 0) return errno == ENOENT;
  const absl::Cleanup close_it = [entry] { close(entry); };
  // Somebody may have removed it meanwhile, and another made it anew.
  if (flock(entry, LOCK_EX | LOCK_NB) != 0 || !IsStillThere(entry, path)) return false;
  shm_unlink(("/" + name).c_str());
  unlink(path.c_str());
  return true;
}

}  // namespace espalier
