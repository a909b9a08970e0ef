// DeviceTrialRunner: finds out, with the node's espalier-worker, whether the device that workers
// take here computes as the processor does (`espalier-worker self-test`), once, while nothing else
// runs. Used by coordinator/agent/agent.cc. One thread.
//
//             nothing runs here           its result
//   (unknown) -----------------> running ------------> known, for as long as the agent lives
//      ^  ^                      |   | none, or kSilent
//      |  +---- something does --+   +-----> (unknown, with the reason)
//      +------------------ kAgain ------------------+
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

class DeviceTrialRunner {
 public:
  // So long it may take: LibTorch is loaded, and everything tried in three precisions.
  static constexpr absl::Duration kLongest = absl::Minutes(3);
  // After one without a result, another is made.
  static constexpr absl::Duration kAgain = absl::Minutes(10);

  struct Options {
    std::string worker;  // the program
    std::string folder;  // of its own: the result and what the worker prints
  };
  explicit DeviceTrialRunner(Options options) : options_(std::move(options)) {}
  // Ends what runs.
  ~DeviceTrialRunner() { Stop(); }
  DeviceTrialRunner(const DeviceTrialRunner&) = delete;
  DeviceTrialRunner& operator=(const DeviceTrialRunner&) = delete;

  // Begins, or looks at what runs; true: there is something new to tell. `idle`: nothing else runs
  // here. `now` is monotonic.
  bool Poll(bool idle, absl::Duration now);
  // Ends what runs: a job comes.
  void Stop();
  void AddTo(v1::NodeReport& report) const;

 private:
  absl::StatusOr<ProcessIdentity> Spawn() const;
  bool Begin(absl::Duration now);
  bool Fail(std::string why, absl::Duration now);
  std::string ResultPath() const { return options_.folder + "/result"; }

  const Options options_;
  bool known_ = false;
  v1::DeviceTrial trial_;    // with an error: until the next one
  ProcessIdentity process_;  // pid 0: none runs
  absl::Duration begun_at_;
  absl::Duration next_at_ = -absl::InfiniteDuration();
  std::vector<int64_t> killed_;  // not yet seen to have ended
};

}  // namespace espalier
