#include "coordinator/journal/record.h"

#include <gtest/gtest.h>

#include "coordinator/loop/messages.h"
#include "espalier/v1/journal.pb.h"

namespace espalier {
namespace {

absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(seconds); }

JobRecord FullRecord() {
  JobRecord record;
  record.id = JobId("job-9");
  record.number = 9;
  record.request_id = "request";
  record.spec.set_name("name");
  record.yaml = "name: name\n";
  record.submitted_at = At(1);
  record.state = JobState::kRecovering;
  record.reason = "because";
  record.state_since = At(2);
  record.desired = DesiredState::kPauseHard;
  record.verdict = Verdict::kFail;
  record.verdict_reason = "bad data";
  record.last_event = 11;
  record.generation = Generation(3);
  record.nodes = {NodeName("a"), NodeName("b")};
  record.external_id = "external";
  record.processes = Processes::kEnding;
  record.directive = {5, RunState::kPause, 2, true, {4, Step(70), {3, 5}, "even", 1234}};
  record.run_state_number = 4;
  record.last_plan = 6;
  record.checkpoint_wanted = true;
  record.called_off = true;
  record.faults = {At(3), At(4)};
  record.restarts = 2;
  record.retry_at = At(5);
  record.fault_step = Step(70);
  record.kept = 40;
  record.fault_kept = 30;
  record.unseen_ends = 1;
  record.unexplained = 2;
  record.unheard = {NodeName("b"), NodeName("a")};
  record.failure = FailureRecord{
      absl::StatusCode::kInternal, Step(69), Generation(2), {NodeName("a"), NodeName("b")}};
  record.step = Step(71);
  record.skipped_steps = 1;
  record.last_step =
      StepFigures{.step = Step(59), .loss = 2.5, .gradient_norm = 0.75, .learning_rate = 3e-4};
  record.evaluation = EvaluationRecord{Step(50), 1.25, 2, 1, 0.5};
  record.checkpoint = CheckpointRecord{Step(60), "/path", 123, 0.5, "", At(6)};
  record.checkpoint_failure = CheckpointRecord{Step(65), "", 0, 0.25, "disk full", At(7)};
  record.checkpoint_failures = 3;
  record.holders = {{NodeName("a"), Step(60)}, {NodeName("b"), Step(0), Step(60)}};
  record.trained_on = {NodeName("a"), NodeName("b")};
  record.practised_on = {NodeName("c")};
  record.history = 2;
  record.rate_factor = 0.25;
  record.warnings = {"loss_rise"};
  record.speeds = {{NodeName("a"), SpeedModel({3, 30, 310, 1.5, 16, 0.02, 5})}};
  return record;
}

// Every field of the message is set by a full record, and the bytes come back the same.
TEST(Record, EveryFieldOfAJobSurvivesTheJournal) {
  const std::string bytes = EncodeJob(FullRecord());
  absl::StatusOr<JobRecord> decoded = DecodeJob(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(EncodeJob(*decoded), bytes);
  EXPECT_EQ(decoded->directive, FullRecord().directive);
  EXPECT_EQ(decoded->nodes, FullRecord().nodes);
  EXPECT_EQ(decoded->trained_on, FullRecord().trained_on);
  EXPECT_EQ(decoded->practised_on, FullRecord().practised_on);
  EXPECT_EQ(decoded->rate_factor, 0.25);
  EXPECT_EQ(decoded->warnings, FullRecord().warnings);
  EXPECT_EQ(decoded->speeds[0].node, NodeName("a"));
  EXPECT_TRUE(decoded->speeds[0].speed.measured());
  EXPECT_EQ(decoded->checkpoint->at, At(6));
  EXPECT_EQ(decoded->failure->code, absl::StatusCode::kInternal);
  EXPECT_EQ(decoded->failure->nodes, FullRecord().failure->nodes);

  v1::JournalJob row;
  ASSERT_TRUE(row.ParseFromString(bytes));
  const google::protobuf::Reflection& reflection = *row.GetReflection();
  for (int i = 0; i < row.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = row.GetDescriptor()->field(i);
    const bool set = field->is_repeated() ? reflection.FieldSize(row, field) > 0
                                          : reflection.HasField(row, field);
    EXPECT_TRUE(set) << std::string(field->name());
  }
}

TEST(Record, AnEmptyJobKeepsItsAbsences) {
  JobRecord record;
  record.id = JobId("job-1");
  const JobRecord decoded = *DecodeJob(EncodeJob(record));
  EXPECT_FALSE(decoded.evaluation.has_value());
  EXPECT_FALSE(decoded.checkpoint.has_value());
  EXPECT_EQ(decoded.retry_at, absl::UnixEpoch());
}

TEST(Record, EveryFieldOfANodeSurvivesTheJournal) {
  NodeRecord node = {NodeName("a"), {At(1), At(2)}, 3, "hot", At(4), "away", true, "ab12"};
  node.serials = {"5e", "6f"};
  node.revoked = {"7a"};
  node.invitation = {.token_sha256 = "0a", .expires_at = At(5), .used_at = At(6)};
  node.invitation->spec.set_address("10.0.0.1");
  node.joined = node.invitation->spec;
  node.joined_as = 4;
  node.joined->mutable_tls()->set_ca("/ca.crt");
  node.illness = {Ailment::kHeat, "is too hot", At(7), {At(6), At(7)}};
  const NodeRecord decoded = *DecodeNode(EncodeNode(node));
  EXPECT_EQ(decoded.illness.ailment, Ailment::kHeat);
  EXPECT_EQ(decoded.illness.why, "is too hot");
  EXPECT_EQ(decoded.illness.since, At(7));
  EXPECT_EQ(decoded.illness.fell_ill, node.illness.fell_ill);
  EXPECT_EQ(decoded.name, node.name);
  EXPECT_EQ(decoded.faults, node.faults);
  EXPECT_TRUE(decoded.has_agent);
  EXPECT_EQ(decoded.certificate, node.certificate);
  EXPECT_EQ(decoded.serials, node.serials);
  EXPECT_EQ(decoded.revoked, node.revoked);
  EXPECT_EQ(decoded.invitation->token_sha256, "0a");
  EXPECT_EQ(decoded.invitation->expires_at, At(5));
  EXPECT_EQ(decoded.invitation->used_at, At(6));
  EXPECT_EQ(decoded.invitation->spec.address(), "10.0.0.1");
  EXPECT_EQ(decoded.joined->tls().ca(), "/ca.crt");
  EXPECT_EQ(decoded.joined_as, 4);
  EXPECT_EQ(decoded.drained, "away");
  EXPECT_FALSE(DecodeNode(EncodeNode({NodeName("b")}))->drained.has_value());
  EXPECT_EQ(decoded.set_asides, 3);
  EXPECT_EQ(decoded.set_aside_reason, "hot");
  EXPECT_EQ(decoded.set_aside_until, At(4));
}

TEST(Record, WhatIsNoRecordIsRefused) {
  EXPECT_EQ(DecodeJob("\xff\xff").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeJob("").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeNode("").status().code(), absl::StatusCode::kDataLoss);
  v1::JournalJob newer;
  newer.set_id("job-1");
  newer.set_state(77);
  EXPECT_EQ(DecodeJob(newer.SerializeAsString()).status().code(), absl::StatusCode::kDataLoss);
}

// The core's enums are cast to the protocol's.
TEST(Translate, TheNumbersOfTheEnumsAreThoseOfTheProtocol) {
  EXPECT_EQ(static_cast<int>(JobState::kQueued), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(static_cast<int>(JobState::kPausedSoft), v1::JOB_STATE_PAUSED_SOFT);
  EXPECT_EQ(static_cast<int>(JobState::kRecovering), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(static_cast<int>(JobState::kCancelled), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(static_cast<int>(Phase::kStarting), v1::PHASE_STARTING);
  EXPECT_EQ(static_cast<int>(Phase::kStopping), v1::PHASE_STOPPING);
  EXPECT_EQ(static_cast<int>(RunState::kStop), v1::RUN_STATE_STOP);
  EXPECT_EQ(static_cast<int>(Outcome::kLost), v1::OUTCOME_LOST);
}

TEST(Translate, WhatIsKeptBeforeAStepIsTold) {
  v1::AttachRequest message;
  message.mutable_practised()->set_step(2);
  message.mutable_practised()->set_kept(64);
  message.mutable_practised()->set_error("No space left on device");
  const std::optional<Event> event = WorkerEvent(StreamId(1), message);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(std::get<WorkerPractised>(*event).step, Step(2));
  EXPECT_EQ(std::get<WorkerPractised>(*event).kept, 64);
  EXPECT_EQ(std::get<WorkerPractised>(*event).error, "No space left on device");
}

TEST(Translate, AMessageWithoutMeaningIsNoEvent) {
  EXPECT_FALSE(WorkerEvent(StreamId(1), v1::AttachRequest()).has_value());
  v1::AttachRequest finished;
  finished.mutable_finished();
  EXPECT_FALSE(WorkerEvent(StreamId(1), finished).has_value());
}

}  // namespace
}  // namespace espalier
