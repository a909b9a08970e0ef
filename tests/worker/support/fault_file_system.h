// FaultFileSystem: the real file system with a fault at a chosen operation: full disk, one error, a
// crash, a real SIGKILL; and a loss of power that takes back everything that was not synced. Used
// by tests/worker/data/prepare_fault_test.cc, tests/worker/state/checkpoint_crash_test.cc and
// checkpoint_store_test.cc, and tests/worker/train/step_errors_test.cc. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/file_system.h"

namespace espalier {

class FaultFileSystem : public FileSystem {
 public:
  enum class Fault {
    kNone,
    kDiskFull,  // from the operation on, whatever needs space fails; an append gets half through
    kOneError,  // the operation alone fails
    kCrash,     // appends and removals get half through; no operation works afterwards
    kKill,      // the process kills itself before the operation (half through those two)
  };
  struct Plan {
    Fault fault = Fault::kNone;
    int64_t operation = 0;  // from 0; reads and lists do not count
  };
  explicit FaultFileSystem(Plan plan) : plan_(plan) {}
  ~FaultFileSystem() override;

  int64_t operations() const { return operations_; }

  // Takes back, newest first, what was not synced: contents of files beyond their last Sync,
  // creations, renames and removals in folders without a SyncDirectory since.
  void LosePower();

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::string> Read(const std::string& path, int64_t limit) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;

 private:
  friend class FaultFile;
  enum class Needs { kSpace, kNothing };
  struct Change {
    enum class Kind { kCreated, kRenamed, kRemoved } kind = Kind::kCreated;
    std::string path;  // where it is now; for kRemoved, where it was
    std::string from;  // kRenamed: its name before; kRemoved: where it is kept
  };
  struct Contents {
    int descriptor = -1;
    int64_t synced = 0;  // bytes
  };

  // Called before every operation: OK to go on, or the fault's error.
  absl::Status Begin(Needs needs);
  // Whether the fault hits the operation that Begin has just refused.
  bool Hit() const { return operations_ - 1 == plan_.operation; }
  void RemoveHalf(const std::string& path);
  void KeepReplaced(const std::string& path);
  std::string Keep(const std::string& path, const std::string& folder);

  const Plan plan_;
  int64_t operations_ = 0;
  bool crashed_ = false;
  std::vector<Change> changes_;
  std::vector<std::shared_ptr<Contents>> contents_;
};

}  // namespace espalier
