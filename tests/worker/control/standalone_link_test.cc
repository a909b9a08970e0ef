#include "worker/control/standalone_link.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

v1::Welcome WelcomeToRun() {
  v1::Welcome welcome;
  welcome.set_job_id("alone");
  welcome.mutable_directive()->set_number(1);
  welcome.mutable_directive()->set_run_state(v1::RUN_STATE_RUN);
  return welcome;
}

TEST(StandaloneLink, ItsOnlyDirectiveIsTheOneItWasGiven) {
  const auto link = MakeStandaloneLink({.welcome = WelcomeToRun()}, RealClock());
  const absl::StatusOr<v1::Welcome> welcome = link->Attach(v1::Hello(), absl::Seconds(1));
  ASSERT_TRUE(welcome.ok());
  EXPECT_EQ(welcome->job_id(), "alone");
  EXPECT_EQ(link->directive().run_state(), v1::RUN_STATE_RUN);
  EXPECT_TRUE(link->WaitForDirectiveAfter(0, absl::Seconds(30)));
  EXPECT_FALSE(link->WaitForDirectiveAfter(1, absl::Milliseconds(1)));
}

TEST(StandaloneLink, NobodyFencesItAndItsEndNeedsNoAnswer) {
  const auto link = MakeStandaloneLink({.welcome = WelcomeToRun()}, RealClock());
  link->Report(v1::AttachRequest());
  EXPECT_TRUE(link->status().ok());
  EXPECT_TRUE(link->Finish(v1::Finished(), absl::ZeroDuration()).ok());
}

}  // namespace
}  // namespace espalier
