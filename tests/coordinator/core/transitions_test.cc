// The table of transitions is whole, and the one that people read.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_state.h"
#include "coordinator/core/transaction.h"

namespace espalier {
namespace {

std::string TableForPeople() {
  std::string text = "| from | on | to |\n|---|---|---|\n";
  for (const Transition& transition : Transitions()) {
    absl::StrAppend(&text, "| ", JobStateName(transition.from), " | ", transition.on, " | ",
                    JobStateName(transition.to), " |\n");
  }
  return text;
}

TEST(Transitions, TheReadmeShowsTheTable) {
  std::stringstream readme;
  readme << std::ifstream(ESPALIER_SOURCE_DIR "/coordinator/core/README.md").rdbuf();
  EXPECT_NE(readme.str().find(TableForPeople()), std::string::npos)
      << "put this into coordinator/core/README.md:\n"
      << TableForPeople();
}

TEST(Transitions, EachIsThereOnceAndNoneLeavesAFinalState) {
  std::set<std::pair<JobState, JobState>> seen;
  for (const Transition& transition : Transitions()) {
    EXPECT_FALSE(IsFinal(transition.from)) << JobStateName(transition.from);
    EXPECT_NE(transition.from, transition.to);
    EXPECT_TRUE(seen.emplace(transition.from, transition.to).second)
        << JobStateName(transition.from) << " to " << JobStateName(transition.to);
  }
}

// A state can be entered again for another reason.
TEST(Transitions, NothingElseIsAllowed) {
  EXPECT_TRUE(TransitionAllowed(JobState::kQueued, JobState::kQueued));
  EXPECT_TRUE(TransitionAllowed(JobState::kQueued, JobState::kLaunching));
  EXPECT_FALSE(TransitionAllowed(JobState::kQueued, JobState::kRunning));
  EXPECT_FALSE(TransitionAllowed(JobState::kCompleted, JobState::kQueued));
}

TEST(TransitionsDeathTest, AnyOtherStopsTheCoordinatorBeforeItIsJournaled) {
  ClusterState state;
  Transaction transaction(state, absl::FromUnixSeconds(1));
  Job job;
  job.record.id = JobId("nano-1");
  EXPECT_DEATH(transaction.Enter(job, JobState::kRunning, "because"),
               "nano-1 goes from QUEUED to RUNNING .because., which is not in the table");
}

}  // namespace
}  // namespace espalier
