// PracticeFolder: files that a task keeps in the checkpoint folder of every node, whoever writes
// checkpoints. Each is written whole or not at all, and by nobody whose folder it is no more: a
// generation that was cut off and goes on would undo what others did meanwhile. Used by
// rft_practice.h, grpo_practice.h and test_progress.h. Compute thread.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/task/practice.h"

namespace espalier {

class PracticeFolder {
 public:
  explicit PracticeFolder(const PracticePlace& place) : place_(place) {}

  // The folders that have a file as it is now, the same on all ranks.
  enum class Has { kNone, kSome, kAll };

  struct Content {
    std::string name;
    std::function<std::string()> text;
    // Asked last, with the path of what is there; null: it is replaced.
    std::function<absl::Status(const std::string& path)> may_replace = nullptr;
  };
  struct Written {
    Has has = Has::kNone;
    bool mine = false;  // this rank's folder has it; where others write there: all folders
  };
  // Every rank calls it, and each that writes makes the text; one that cannot write says so in its
  // log. ABORTED, on all of them: a folder is another's by now.
  absl::StatusOr<Written> Write(const Content& content);
  // Why this rank's took nothing when it was last written to; empty: it did.
  const std::string& error() const { return error_; }

 private:
  absl::Status WriteMine(const Content& content);

  const PracticePlace place_;
  std::string error_;
};

}  // namespace espalier
