#include "coordinator/service/side_notes.h"

#include <gtest/gtest.h>

#include "coordinator/service/view.h"

namespace espalier {
namespace {

const JobId kJob("job-1");
const WorkerId kWorker = {kJob, Generation(1), Rank(1)};

struct CauseCase {
  const char* cause;
  Event event;
};

TEST(SideNotes, RestartsAreCountedByTheEventThatCausedThem) {
  const CauseCase cases[] = {{"no_progress", Tick{}},
                             {"worker_reported", WorkerFinished{}},
                             {"connection_lost", WorkerDetached{}},
                             {"processes_exited", ProcessesExited{}},
                             {"launch_failed", LaunchFailed{}},
                             {"coordinator_started", CoordinatorStarted{}},
                             {"other", WorkerReady{}}};
  SideNotes notes;
  for (const CauseCase& one : cases) {
    notes.Moved(kJob, JobState::kRunning, JobState::kRecovering, one.event, {});
    EXPECT_EQ(notes.of(kJob).restarts_by_cause[one.cause], 1) << one.cause;
  }
  notes.Moved(kJob, JobState::kRecovering, JobState::kRecovering, Tick{}, {});
  EXPECT_EQ(notes.of(kJob).restarts_by_cause["no_progress"], 1) << "no transition, no restart";
}

TEST(SideNotes, ReportsOfALostGenerationAreForgottenAndTotalsKept) {
  SideNotes notes;
  notes.Attached(kWorker, absl::Seconds(0));
  v1::AttachRequest message;
  message.mutable_step()->set_exchange_bytes(7);
  notes.Heard(kWorker, message, absl::Seconds(1));
  ASSERT_EQ(notes.of(kJob).last_steps.size(), 2u);
  EXPECT_FALSE(notes.of(kJob).last_steps[0].has_value());
  notes.Moved(kJob, JobState::kRunning, JobState::kRecovering, Tick{}, absl::Seconds(2));
  notes.Moved(kJob, JobState::kRecovering, JobState::kLaunching, Tick{}, absl::Seconds(3));
  EXPECT_TRUE(notes.of(kJob).last_steps.empty());
  EXPECT_EQ(notes.of(kJob).tallies[1].exchange_bytes(), 7);
}

// A generation may be lost before its first step, after hours of it.
TEST(SideNotes, WhatIsSampledIsBookedBeforeTheStep) {
  SideNotes notes;
  notes.Attached(kWorker, absl::Seconds(0));
  v1::AttachRequest message;
  message.mutable_practised()->mutable_accounts()->set_rollout_seconds(50);
  notes.Heard(kWorker, message, absl::Seconds(60));
  notes.Moved(kJob, JobState::kRunning, JobState::kRecovering, Tick{}, absl::Seconds(70));
  EXPECT_EQ(notes.of(kJob).tallies[1].seconds(GoodputAccount::kRollout), 50);
  EXPECT_LT(notes.of(kJob).tallies[1].seconds(GoodputAccount::kRecovering), 20);
}

v1::AttachRequest StepWith(std::vector<std::pair<std::string, double>> figures) {
  v1::AttachRequest message;
  for (const auto& [name, value] : figures) {
    v1::TaskFigure& figure = *message.mutable_step()->add_figures();
    figure.set_name(name);
    figure.set_value(value);
  }
  return message;
}

// They become labels of metrics, of which there must be few whatever a worker says.
TEST(SideNotes, FiguresOfTasksAreRankZerosOfKnownNamesOnce) {
  SideNotes notes;
  const WorkerId leader = {kJob, Generation(1), Rank(0)};
  notes.Heard(leader, StepWith({{"reward", 0.5}, {"made_up", 1}, {"reward", 2}, {"kl", 0.25}}), {});
  notes.Heard(kWorker, StepWith({{"reward", 7}}), {});
  const auto& figures = notes.of(kJob).figures;
  ASSERT_EQ(figures.size(), 2);
  EXPECT_EQ(figures[0].name(), "reward");
  EXPECT_EQ(figures[0].value(), 0.5);
  EXPECT_EQ(figures[1].name(), "kl");
  v1::AttachRequest evaluation;
  *evaluation.mutable_evaluation()->mutable_figures() =
      StepWith({{"solve_rate", 0.75}, {"made_up", 1}}).step().figures();
  notes.Heard(leader, evaluation, {});
  ASSERT_EQ(notes.of(kJob).evaluation_figures.size(), 1);
  EXPECT_EQ(notes.of(kJob).evaluation_figures[0].value(), 0.75);
  EXPECT_EQ(notes.of(kJob).figures.size(), 2) << "those of the step stay";
}

TEST(SideNotes, AFinalJobRemembersWhen) {
  SideNotes notes;
  notes.Moved(kJob, JobState::kRunning, JobState::kCompleted, Tick{}, absl::Seconds(9));
  EXPECT_EQ(notes.of(kJob).final_at, absl::Seconds(9));
}

View ViewOf(const std::vector<std::pair<std::string, std::string>>& ids_and_names) {
  View view;
  for (const auto& [id, name] : ids_and_names) {
    auto job = std::make_shared<JobView>();
    job->status.set_name(name);
    view.jobs[JobId(id)] = job;
  }
  return view;
}

TEST(View, AJobIsFoundByIdPrefixOrUniqueName) {
  const View view = ViewOf({{"nano-1", "nano"}, {"nano-12", "nano"}, {"big-3", "big"}});
  EXPECT_EQ(*view.Resolve("nano-1"), JobId("nano-1")) << "an exact id comes before prefixes";
  EXPECT_EQ(*view.Resolve("nano-12"), JobId("nano-12"));
  EXPECT_EQ(*view.Resolve("big"), JobId("big-3"));
  EXPECT_EQ(view.Resolve("nano").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(view.Resolve("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(view.Resolve("").status().code(), absl::StatusCode::kNotFound);
}

TEST(View, AJobsOwnNameComesBeforeIdsThatBeginSo) {
  const View view = ViewOf({{"long-27", "long"}, {"longprompt-16", "longprompt"}});
  EXPECT_EQ(*view.Resolve("long"), JobId("long-27"));
  EXPECT_EQ(*view.Resolve("longp"), JobId("longprompt-16"));
  EXPECT_EQ(view.Resolve("lon").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(View, SilenceGrowsWithTheTimeOfReading) {
  JobView job;
  job.status.add_ranks();
  job.progress_at = {absl::Seconds(10)};
  EXPECT_EQ(job.StatusAt(absl::Seconds(14)).ranks(0).silent_seconds(), 4);
  EXPECT_EQ(job.StatusAt(absl::Seconds(9)).ranks(0).silent_seconds(), 0);
}

}  // namespace
}  // namespace espalier
