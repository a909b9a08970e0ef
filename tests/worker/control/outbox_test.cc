#include "worker/control/outbox.h"

#include <gtest/gtest.h>

#include <vector>

namespace espalier {
namespace {

using Body = v1::AttachRequest::BodyCase;

v1::AttachRequest StepMessage(int64_t step) {
  v1::AttachRequest message;
  message.mutable_step()->set_step(step);
  return message;
}
v1::AttachRequest AckMessage(int64_t number) {
  v1::AttachRequest message;
  message.mutable_ack()->set_number(number);
  return message;
}
v1::AttachRequest ReadyMessage() {
  v1::AttachRequest message;
  message.mutable_ready();
  return message;
}

std::vector<v1::AttachRequest> TakeAll(Outbox& outbox) {
  std::vector<v1::AttachRequest> all;
  while (std::optional<v1::AttachRequest> message = outbox.Take()) all.push_back(*message);
  return all;
}

TEST(Outbox, AFullOneDropsTheOldestSteps) {
  Outbox outbox(/*steps_max=*/3);
  for (int64_t step = 0; step < 5; ++step) outbox.Add(StepMessage(step));
  EXPECT_EQ(outbox.dropped_steps(), 2);
  const std::vector<v1::AttachRequest> all = TakeAll(outbox);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all.front().step().step(), 2);
  EXPECT_EQ(all.back().step().step(), 4);
}

// Their seconds would be missing from the accounts, or be there twice.
TEST(Outbox, WhatIsDoneBeforeStepsIsToldOnceEach) {
  Outbox outbox(3);
  for (const int64_t kept : {64, 128}) {
    v1::AttachRequest message;
    message.mutable_practised()->set_kept(kept);
    outbox.Add(message);
  }
  EXPECT_EQ(TakeAll(outbox).size(), 2U);
  outbox.Reconnected();
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, ANewerAckReplacesOneThatStillWaits) {
  Outbox outbox(3);
  outbox.Add(AckMessage(1));
  outbox.Add(AckMessage(2));
  const std::vector<v1::AttachRequest> all = TakeAll(outbox);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all.front().ack().number(), 2);
}

TEST(Outbox, ANewStreamIsToldTheNewestOfEachKindAgainInTheOrderOfALife) {
  Outbox outbox(3);
  outbox.Add(ReadyMessage());
  outbox.Add(AckMessage(1));
  outbox.Add(StepMessage(0));
  TakeAll(outbox);
  outbox.Add(StepMessage(1));
  outbox.Reconnected();
  std::vector<Body> kinds;
  for (const v1::AttachRequest& message : TakeAll(outbox)) kinds.push_back(message.body_case());
  EXPECT_EQ(kinds, (std::vector<Body>{Body::kReady, Body::kStep, Body::kAck}));
}

// Only a rank that is not ready is asked what it found.
TEST(Outbox, WhatWasFoundAtTheStartIsToldAgainAfterReadiness) {
  Outbox outbox(3);
  v1::AttachRequest found;
  found.mutable_found()->set_step(4);
  outbox.Add(found);
  outbox.Add(AckMessage(1));
  outbox.Add(ReadyMessage());
  outbox.Reconnected();
  std::vector<Body> kinds;
  for (const v1::AttachRequest& message : TakeAll(outbox)) kinds.push_back(message.body_case());
  EXPECT_EQ(kinds, (std::vector<Body>{Body::kReady, Body::kFound, Body::kAck}));
}

TEST(Outbox, StepsThatWereTakenAreNotToldTwice) {
  Outbox outbox(3);
  outbox.Add(StepMessage(0));
  TakeAll(outbox);
  outbox.Reconnected();
  EXPECT_TRUE(outbox.empty());
}

}  // namespace
}  // namespace espalier
