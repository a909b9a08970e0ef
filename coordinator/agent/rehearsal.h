// RehearsalRunner: finds out, with the node's espalier-worker, whether this node could train a job
// that trains elsewhere, so that the job stops for nobody who cannot
// (`espalier-worker rehearse`: data, model, device, memory). Used by coordinator/agent/agent.cc.
// One thread.
//
//          Ask            exit status 0            kLasts
//   (none) ---> running ----------------> ready ----------> (none)
//      ^           | another one
//      |           +-------> failed --kAgain--> (none)
//      +-----------+ nobody has asked for kForget; or Forget
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "espalier/v1/agent.pb.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

class RehearsalRunner {
 public:
  // So long what was found counts; a failure less long, since a person may have mended it.
  static constexpr absl::Duration kLasts = absl::Minutes(10);
  static constexpr absl::Duration kAgain = absl::Minutes(1);
  // What runs and was not asked for so long is ended.
  static constexpr absl::Duration kForget = absl::Seconds(30);
  // What has said nothing new for so long has failed: a disk that hangs, say.
  static constexpr absl::Duration kSilent = absl::Minutes(5);

  struct Options {
    std::string worker;  // the program, where a request names none
    // Of its own: the request, the process and what the worker prints.
    std::string folder;
  };
  // Ends what an earlier agent, which was killed, left running.
  explicit RehearsalRunner(Options options);
  // Ends what runs.
  ~RehearsalRunner() { Forget(); }
  RehearsalRunner(const RehearsalRunner&) = delete;
  RehearsalRunner& operator=(const RehearsalRunner&) = delete;

  // espalierd wants to know, or still does; what is known of another request is forgotten. `now` is
  // monotonic, as everywhere.
  void Ask(const v1::RehearseJob& request, absl::Duration now);
  // Looks at what runs; true: there is something new to tell.
  bool Poll(absl::Duration now);
  // Ends what runs: a job comes, or another request.
  void Forget();
  void AddTo(v1::NodeReport& report) const;
  bool running() const {
    return !rehearsal_.job_id().empty() && rehearsal_.state() == v1::REHEARSAL_STATE_RUNNING;
  }

 private:
  bool Lapsed(absl::Duration now) const;
  void Begin(const v1::RehearseJob& request, absl::Duration now);
  absl::StatusOr<ProcessIdentity> Spawn(const v1::RehearseJob& request);
  std::string RecordPath() const { return options_.folder + "/process"; }
  // The last line that the worker has printed, without what a log adds to it.
  std::string LastLine() const;
  void Kill();
  void Fail(std::string text, absl::Duration now);

  const Options options_;
  v1::Rehearsal rehearsal_;  // without a job: none
  std::string request_;      // serialized
  ProcessIdentity process_;
  std::vector<int64_t> killed_;  // not yet seen to have ended
  absl::Duration asked_at_;
  absl::Duration told_at_;  // something new
  absl::Duration ended_at_;
};

}  // namespace espalier
