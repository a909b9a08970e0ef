// Workers that find the size of their micro-batches, or learn that nothing fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "tests/worker/child.h"
#include "tests/worker/tiny_job.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// The tiny job without a size of micro-batches, for a few steps.
std::vector<std::string> Arguments(const TinyJob& job, const std::string& name) {
  const std::string text = ReadText(job.folder() / "job.yaml");
  job.folder().Write("found.yaml", absl::StrReplaceAll(text, {{"batch: {micro_batch: 4}\n", ""}}));
  std::vector<std::string> arguments = job.Arguments(name);
  arguments[1] = job.folder() / "found.yaml";
  arguments.insert(arguments.end(), {"--set", "train.steps=3"});
  return arguments;
}

TEST(Memory, EveryRankFindsItsOwnSizeOfPassesBeforeTheFirstStep) {
  const TinyJob job;
  const Ended ended =
      RunToEnd(MpirunWorker(2, job.folder().path(), Arguments(job, "two")), job.folder() / "log");
  EXPECT_EQ(ended.code, 0) << ended.output;
  for (const char* rank : {"rank 0", "rank 1"}) EXPECT_THAT(ended.output, HasSubstr(rank));
  size_t found = 0;
  constexpr char kLarge[] = "micro-batches of 16 sequences";
  for (size_t at = 0; (at = ended.output.find(kLarge, at)) != std::string::npos; ++at) {
    ++found;
  }
  EXPECT_EQ(found, 2) << ended.output;
}

TEST(Memory, AModelThatDoesNotFitIsRefusedWithNumbersAndWhatToChange) {
  const TinyJob job;
  std::vector<std::string> command = Arguments(job, "none");
  command.insert(command.begin(), WorkerProgram());
  command.insert(command.end(), {"--set", "batch.memory_limit_bytes=1000"});
  const Ended ended = RunToEnd(command, job.folder() / "log");
  EXPECT_EQ(ended.code, 1) << ended.output;
  for (const char* part : {"the model does not fit", "parameters, gradients and optimizer take",
                           "the limit is 1e-06 GB", "a smaller model"}) {
    EXPECT_THAT(ended.output, HasSubstr(part));
  }
}

}  // namespace
}  // namespace espalier
