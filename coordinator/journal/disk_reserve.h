// DiskReserve: a file of a few MB that is there only to take up space, so that a writer which must
// not stop has some left on a disk that others have filled. Used by sqlite_journal.h. One thread at
// a time.
#pragma once

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace espalier {

class DiskReserve {
 public:
  static constexpr int64_t kBytes = 8 << 20;

  explicit DiskReserve(std::string path, Clock& clock = RealClock())
      : path_(std::move(path)), clock_(clock) {}

  // Writes the file where it is missing; a disk without room for it is asked again after
  // kBetweenAttempts only. Nothing depends on success.
  void Keep();
  // Gives the space back; false: there was none.
  bool Release();

 private:
  static constexpr absl::Duration kBetweenAttempts = absl::Minutes(1);

  bool Write() const;

  std::string path_;
  Clock& clock_;
  bool kept_ = false;
  absl::Duration next_attempt_ = absl::ZeroDuration();
};

}  // namespace espalier
