#include "worker/control/standalone_client.h"

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

TEST(StandaloneClient, ItsOnlyDirectiveIsTheOneItWasGiven) {
  const auto client = MakeStandaloneClient({.welcome = WelcomeToRun()}, RealClock());
  const absl::StatusOr<v1::Welcome> welcome = client->Attach(v1::Hello(), absl::Seconds(1));
  ASSERT_TRUE(welcome.ok());
  EXPECT_EQ(welcome->job_id(), "alone");
  EXPECT_EQ(client->directive().run_state(), v1::RUN_STATE_RUN);
  EXPECT_TRUE(client->WaitForDirectiveAfter(0, absl::Seconds(30)));
  EXPECT_FALSE(client->WaitForDirectiveAfter(1, absl::Milliseconds(1)));
}

TEST(StandaloneClient, NobodyFencesItAndItsEndNeedsNoAnswer) {
  const auto client = MakeStandaloneClient({.welcome = WelcomeToRun()}, RealClock());
  client->Report(v1::AttachRequest());
  EXPECT_TRUE(client->status().ok());
  EXPECT_TRUE(client->Finish(v1::Finished(), absl::ZeroDuration()).ok());
}

}  // namespace
}  // namespace espalier
