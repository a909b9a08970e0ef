// TestProgress: how far the test of the model as it is at a step has come, and the file that holds
// it, so that a generation which is ended in one of hours is no loss: as rft_progress.h does for
// what is sampled. Used by rft_practice.h and grpo_practice.cc. Compute thread; JSON is pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/task/practice_folder.h"

namespace espalier {

struct TestProgress {
  std::string of;  // TestName: what the model at a step is a function of
  int64_t step = 0;
  int64_t reach = 0;   // grows with every order; 0: nothing is done
  std::string so_far;  // what came of it, in a form of the task's own
  friend bool operator==(const TestProgress&, const TestProgress&) = default;
};

std::string TestProgressToJson(const TestProgress& kept);
// DATA_LOSS: it is cut, altered, or of another version.
absl::StatusOr<TestProgress> TestProgressFromJson(absl::string_view json);

// The furthest of what the ranks find in their folders, under that name, of the test of `of` at
// `step`; of reach 0 where there is none. Every rank calls it and has the same.
absl::StatusOr<TestProgress> LoadTestProgress(const PracticePlace& place, const std::string& name,
                                              const std::string& of, int64_t step);

// What may lie where a test's progress is written.
enum class MayReplace {
  kNoFurther,  // nothing that has more of the same test: others go on with it
  kAnything,   // what was found is of no use
};

// Into the folders of all ranks, each of which calls it with the same. Whether this rank's has it
// now. ABORTED: one has more of the same test, so that others go on with it; or is another's.
absl::StatusOr<bool> WriteTestProgress(PracticeFolder& folder, const std::string& name,
                                       const TestProgress& kept,
                                       MayReplace may = MayReplace::kNoFurther);

}  // namespace espalier
