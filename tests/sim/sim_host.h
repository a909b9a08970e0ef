// What a simulated espalierd finds on its machine: SimClock, whose wall clock may be corrected at
// any time, and NoFolders, a disk on which jobs have no folders. Used by sim_coordinator.h. One
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "tests/sim/scene.h"

namespace espalier::sim {

class SimClock : public Clock {
 public:
  // `pass` lets virtual time pass while somebody waits.
  SimClock(Scene& scene, std::function<void(absl::Duration)> pass)
      : scene_(scene), pass_(std::move(pass)) {}

  absl::Time Now() override { return scene_.timeline.now() + off_; }
  absl::Duration Monotonic() override { return (scene_.timeline.now() - begin_ - slept_) * rate_; }
  void Sleep(absl::Duration duration) override { pass_(TimeFor(duration)); }
  // How fast the monotonic clock goes; and how long it takes until it has gone so far.
  void SetRate(double rate) { rate_ = rate; }
  // The machine has slept for so long, in which it stood.
  void Skip(absl::Duration slept) { slept_ += slept; }
  absl::Duration TimeFor(absl::Duration duration) const { return duration / rate_; }
  // How far the wall clock is from the run's time from now on.
  void Correct(absl::Duration off) { off_ = off; }

 private:
  Scene& scene_;
  const std::function<void(absl::Duration)> pass_;
  const absl::Time begin_ = scene_.timeline.now() - absl::Hours(1);
  double rate_ = 1;
  absl::Duration slept_;
  absl::Duration off_;
};

class NoFolders : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string&) override {
    return Full();
  }
  absl::StatusOr<std::string> Read(const std::string&, int64_t) override { return Nothing(); }
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override { return Nothing(); }
  absl::Status MakeDirectory(const std::string&) override { return Full(); }
  absl::Status Rename(const std::string&, const std::string&) override { return Nothing(); }
  absl::Status Remove(const std::string&) override { return absl::OkStatus(); }
  absl::Status SyncDirectory(const std::string&) override { return Nothing(); }

 private:
  static absl::Status Full() { return absl::ResourceExhaustedError("no folders here"); }
  static absl::Status Nothing() { return absl::NotFoundError("no folders here"); }
};

}  // namespace espalier::sim
