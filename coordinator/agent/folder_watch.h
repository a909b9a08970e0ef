// FolderWatch: what lies in a folder that may not answer, such as one of a network mount. A thread
// of its own looks at it, and changes it; who asks gets what was seen last. Used by
// coordinator/agent/node_facts.h. Thread rule: one thread, except that `look` and what is to be
// done are called by the watch's own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

class FolderWatch {
 public:
  // Adds what lies in the folder to a report; `before` is what the last look added, for what cannot
  // be read now. It holds everything that it needs, because a look that hangs outlives the watch.
  using Look = std::function<void(const std::string& folder, const v1::NodeReport& before,
                                  v1::NodeReport& report)>;
  // To be done in the folder; holds what it needs, too.
  using Chore = std::function<void(const std::string& folder)>;
  // `before`: what counts as seen until the first look is over.
  FolderWatch(std::string folder, Look look, Clock& clock, v1::NodeReport before = {});
  // Waits for no look.
  ~FolderWatch();

  // Asks for another look, waits for it a moment, and adds what was seen last.
  void AddLatest(v1::NodeReport& report);
  // Before the next look. Waits for nothing; of a folder that does not answer only so much is kept
  // to be done, and the rest dropped.
  void Do(Chore chore);

 private:
  // Of both threads.
  struct Board {
    // What is to be done before another look; nullopt: there is none any more.
    std::optional<std::vector<Chore>> AwaitWish();
    void Show(v1::NodeReport report);
    bool done() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return !wanted && !looking; }

    absl::Mutex mutex;
    SteadyCondition changed;
    bool wanted ABSL_GUARDED_BY(mutex) = false;
    bool looking ABSL_GUARDED_BY(mutex) = false;
    bool stopped ABSL_GUARDED_BY(mutex) = false;
    std::vector<Chore> chores ABSL_GUARDED_BY(mutex);
    v1::NodeReport seen ABSL_GUARDED_BY(mutex);
  };

  // Says once that the folder does not answer, and once that it does again.
  void Tell(bool done);

  const std::string folder_;
  Clock& clock_;
  const std::shared_ptr<Board> board_;
  std::thread thread_;
  // When the look at hand was asked for.
  absl::Duration asked_at_;
  bool told_ = false;
};

}  // namespace espalier
