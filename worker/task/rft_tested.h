// RftKeptTest: how far the test of the model as it is at a step has come, and the file that holds
// it, so that a generation which is ended in one of hours is no loss: as rft_progress.h does for
// what is sampled. Used by rft_practice.h. Compute thread; JSON is pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "worker/sync/together.h"
#include "worker/task/rft_progress.h"

namespace espalier {

inline constexpr char kRftKeptTestName[] = "rft.test.json";

struct RftKeptTest {
  std::string of;  // RftTestName: what the model at a step is a function of
  int64_t step = 0;
  RftTest test;
  friend bool operator==(const RftKeptTest&, const RftKeptTest&) = default;
};

std::string RftKeptTestToJson(const RftKeptTest& kept);
// DATA_LOSS: it is cut, altered, or of another version.
absl::StatusOr<RftKeptTest> RftKeptTestFromJson(absl::string_view json);

// ABORTED: the file is of the same test and further than `mine`, so that others go on with it.
absl::Status CheckNoFurther(FileSystem& files, const std::string& path, const RftKeptTest& mine);

// The furthest of what the ranks find in their folders of the test of `of` at `step`; without
// answers where there is none. Every rank calls it and has the same.
absl::StatusOr<RftKeptTest> LoadRftKeptTest(const RankContext& context, FileSystem& files,
                                            const std::string& folder, const std::string& of,
                                            int64_t step);

}  // namespace espalier
