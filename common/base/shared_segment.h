// SharedSegment: POSIX shared memory that outlives the process that made it, for as long as the
// machine runs. Systems cannot all list such memory, so each segment has a file of its name in a
// folder, the registry: it says whose the segment is and what its bytes mean, and its lock says
// whether a process has it. The file is gone: so is what the segment held. Used by
// worker/state/warm_segment.h, and by espalier-agent, which gives back what nobody wants any more.
// One thread at a time; the bytes are the owner's affair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace espalier {

// What the registry says of a segment.
struct SegmentRecord {
  std::string job;   // empty: of a run without espalierd
  std::string node;  // the machine whose memory it is, since folders may be shared
  int worker = 0;    // among those of the job on this node
  // Of the job: a segment of another one is made anew.
  int64_t history = 0;
  // Of the job, that the process belongs to which has the segment.
  int64_t generation = 0;
  // What the bytes mean, one line: a segment that means something else is made anew.
  std::string layout;
  int64_t bytes = 0;
};

class SharedSegment {
 public:
  // macOS allows 31 characters with the slash.
  static constexpr size_t kLongestName = 30;

  // The segment of this job, node and worker: as it was left (`found`), or zeroed. It belongs to
  // this process from now on. Waits up to `patience` for one that is about to end;
  // FAILED_PRECONDITION names the process that does not. RESOURCE_EXHAUSTED: there is no shared
  // memory for it. Errors say what to do.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Open(
      const std::string& registry, const SegmentRecord& record,
      absl::Duration patience = absl::Seconds(5));
  // The bytes stay, for the next one who opens it.
  ~SharedSegment();

  const std::string& name() const { return name_; }
  bool found() const { return found_; }
  // Page-aligned. Before the first use of a part it must be reserved.
  absl::Span<std::byte> bytes() const { return bytes_; }
  // How far its owner says that it is, which is seen without the lock; 0: it holds nothing of use.
  void set_mark(int64_t mark);
  // Memory for a part; what is reserved already costs little. RESOURCE_EXHAUSTED as above: without
  // this the system would kill the process when it runs out.
  absl::Status Reserve(int64_t begin, int64_t size);
  // Gives the memory back when nobody maps it any more; what is mapped stays usable until then.
  void Remove();

 private:
  SharedSegment(std::string registry, SegmentRecord record, std::string name)
      : registry_(std::move(registry)), record_(std::move(record)), name_(std::move(name)) {}
  absl::Status Lock(absl::Duration patience);
  bool MapFound();
  absl::Status MakeAnew();
  absl::Status Map(int64_t size);
  std::string EntryPath() const;
  std::string SystemName() const;

  const std::string registry_;
  const SegmentRecord record_;
  const std::string name_;  // of the registry's file; the system's has a slash before it
  int entry_ = -1;          // its descriptor, which holds the lock
  int memory_ = -1;
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
  bool found_ = false;
  absl::Span<std::byte> bytes_;
};

struct RegisteredSegment {
  std::string name;
  SegmentRecord record;
  int64_t mark = 0;
  // A process has it; of record.generation.
  bool taken = false;
  // There is a file, and no such memory: the machine was started anew, or the segment is being
  // made.
  bool lost = false;
};
// Those of a node, by name. A folder that does not exist holds none.
absl::StatusOr<std::vector<RegisteredSegment>> ListSegments(const std::string& registry,
                                                            const std::string& node);
// Segment and file, unless a process has it. True: it is gone.
bool RemoveSegment(const std::string& registry, const std::string& name);

// Memory for a part of a segment, so that a write to it cannot fail; one source per system. 0, or
// an errno value.
int ReserveDescriptor(int descriptor, int64_t begin, int64_t size);

}  // namespace espalier
