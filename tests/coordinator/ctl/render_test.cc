// What people see, as whole screens.
#include "coordinator/ctl/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/ctl/follow.h"
#include "tests/coordinator/ctl/fake_operator.h"

namespace espalier::ctl {
namespace {

using ::testing::HasSubstr;

const View kView{.now = absl::FromUnixSeconds(1800000000)};

TEST(RenderJobs, OneLineAJob) {
  v1::ListJobsResponse response;
  *response.add_jobs() = RunningJob();
  v1::JobStatus& queued = *response.add_jobs();
  queued.set_id("81bb0c44");
  queued.set_name("big");
  queued.set_state(v1::JOB_STATE_QUEUED);
  queued.set_total_steps(20);
  queued.set_state_since_ms(1799990000000);
  queued.set_reason("waits for 1 more node");
  EXPECT_EQ(RenderJobs(response, kView),
            R"(ID        NAME        STATE        STEP    LOSS  TOKENS/S   LEFT  SINCE  REASON
3f2a9c1e  quickstart  RUNNING  512/1500  2.1345     12.3k  1m40s  1m12s  2 ranks agreed on step 0
81bb0c44  big         QUEUED       0/20       -         -      -  2h46m  waits for 1 more node
)");
}

TEST(RenderJobs, AnEmptyListSaysWhatToDo) {
  EXPECT_EQ(RenderJobs({}, kView), "no jobs; submit one: espalier submit FILE\n");
}

TEST(RenderJob, ShowsEverythingAndThePlan) {
  EXPECT_EQ(RenderJob(RunningJob(), Detail::kPlan, kView),
            R"(job             3f2a9c1e
name            quickstart
state           RUNNING for 1m12s
reason          2 ranks agreed on step 0
submitted       2027-01-15 07:58:20
priority        0
generation      1
restarts        0
steps           512/1500
loss            2.1345
validation loss 2.2000 after step 500
tokens/s        12.3k
time left       1m40s
learning rate   0.0003
gradient norm   0.8214
checkpoints in  /state/jobs/3f2a9c1e/checkpoints
last checkpoint step 500, 12.3 MB in 0.2s, /state/jobs/3f2a9c1e/checkpoints/step-00000500

ranks
  RANK  NODE     DEVICE           SHARE  PHASE     STEP  STEP TIME  MEMORY
     0  studio   cpu     12 by 4 (75 %)  EXCHANGE   512     0.166s  412 MB, peak 500 MB of 2.00 GB
     1  macbook  cpu      4 by 4 (25 %)  COMPUTE    512     0.166s  412 MB, peak 500 MB of 2.00 GB

shard plan
  number 1, from step 0, since 2027-01-15 07:58:48 (1m12s)
  RANK  NODE     SHARE    PART  CONSTANT  A SEQUENCE  PREDICTED  LAST STEP
     0  studio      12  75.0 %     0.01s     0.0125s      0.16s    0.1581s
     1  macbook      4  25.0 %     0.01s     0.0363s    0.1552s    0.1581s
  imbalance: the latest rank takes 1.6 % longer than the mean
  because: even: no measurements yet
)");
}

v1::JobStatus RewardedJob() {
  v1::JobStatus job = RunningJob();
  const auto add = [](v1::TaskFigure& figure, const std::string& name, double value) {
    figure.set_name(name);
    figure.set_value(value);
  };
  add(*job.add_figures(), "reward", 0.51239);
  add(*job.add_figures(), "completion_tokens", 96);
  add(*job.add_evaluation_figures(), "solve_rate", 1);
  return job;
}

TEST(RenderJob, FiguresOfTheTaskHaveALineEach) {
  const v1::JobStatus job = RewardedJob();
  EXPECT_THAT(RenderJob(job, Detail::kSummary, kView), HasSubstr(R"(
validation loss 2.2000 after step 500
last step       reward 0.5124, completion_tokens 96
last evaluation solve_rate 1
tokens/s        12.3k
)"));
}

TEST(RenderJob, AFailedCheckpointAndAnAbsentRankStandOut) {
  v1::JobStatus job = RunningJob();
  job.mutable_last_checkpoint()->set_error("no space left on device");
  job.mutable_ranks(1)->set_attached(false);
  const std::string text = RenderJob(job, Detail::kSummary, kView);
  EXPECT_NE(text.find("FAILED at step 500: no space left on device"), std::string::npos) << text;
  EXPECT_NE(text.find("absent"), std::string::npos) << text;
  EXPECT_EQ(text.find("shard plan"), std::string::npos) << text;
}

TEST(RenderEvents, OldestFirst) {
  v1::ListEventsResponse response;
  v1::JobEvent& event = *response.add_events();
  event.set_number(1);
  event.set_time_ms(1799999900000);
  event.set_state(v1::JOB_STATE_QUEUED);
  event.set_text("submitted");
  EXPECT_EQ(RenderEvents(response, kView),
            "NUMBER  TIME                 STATE   EVENT\n"
            "     1  2027-01-15 07:58:20  QUEUED  submitted\n");
}

TEST(Table, TextFromElsewhereCannotSteerTheTerminal) {
  Table table({Table::Column{"A"}});
  table.Add({Cell("x\x1b[2Jy\nz")});
  EXPECT_EQ(table.Render(kView), "A\nx [2Jy z\n");
}

TEST(Table, ColumnsLineUpWithColoursAndUtf8) {
  View view = kView;
  view.colour = true;
  Table table({Table::Column{"A"}, Table::Column{"B"}});
  table.Add({Cell("é", Colour::kRed), Cell("1")});
  table.Add({Cell("ab"), Cell("2")});
  EXPECT_EQ(table.Render(view),
            "\x1b[2mA\x1b[0m   \x1b[2mB\x1b[0m\n"
            "\x1b[31mé\x1b[0m   1\n"
            "ab  2\n");
}

TEST(RenderFrame, ShowsTheRunOnAScreen) {
  EXPECT_EQ(RenderFrame(RunningJob(), kView),
            R"(quickstart  3f2a9c1e  RUNNING for 1m12s, generation 1
  2 ranks agreed on step 0
  [#############...........................]  34.1 %  step 512/1500  1m40s left
  loss 2.1345   validation 2.2000 at 500   12.3k tokens/s   lr 3.00e-04   gradient 0.821
  checkpoint of step 500, 12.3 MB
  RANK  NODE     DEVICE           SHARE  PHASE     STEP  STEP TIME  MEMORY
     0  studio   cpu     12 by 4 (75 %)  EXCHANGE   512     0.166s  412 MB, peak 500 MB of 2.00 GB
     1  macbook  cpu      4 by 4 (25 %)  COMPUTE    512     0.166s  412 MB, peak 500 MB of 2.00 GB
)");
}

TEST(RenderFrame, ShowsTheFirstFigureOfTheStepAndOfTheEvaluation) {
  EXPECT_THAT(RenderFrame(RewardedJob(), kView),
              HasSubstr("  loss 2.1345   reward 0.5124   validation 2.2000 at 500   solve_rate 1   "
                        "12.3k tokens/s"));
}

TEST(RenderFrame, FitsTheScreen) {
  v1::JobStatus job = RunningJob();
  while (job.ranks_size() < 64) *job.add_ranks() = job.ranks(0);
  for (int height : {5, 10, 24, 200}) {
    View view = kView;
    view.height = height;
    const std::string frame = RenderFrame(job, view);
    EXPECT_LT(std::count(frame.begin(), frame.end(), '\n'), std::max(height, 6)) << height;
  }
}

TEST(ProgressBar, IsEmptyFullAndNeverBeyond) {
  EXPECT_EQ(ProgressBar(0, 6, kView), "[....]");
  EXPECT_EQ(ProgressBar(0.5, 6, kView), "[##..]");
  EXPECT_EQ(ProgressBar(0.999, 6, kView), "[###.]");
  EXPECT_EQ(ProgressBar(1, 6, kView), "[####]");
  EXPECT_EQ(ProgressBar(7, 6, kView), "[####]");
  EXPECT_EQ(ProgressBar(-1, 6, kView), "[....]");
  View view = kView;
  view.unicode = true;
  EXPECT_EQ(ProgressBar(0.5, 4, view), "[█░]");
}

TEST(Redraw, GoesBackToTheStartOfThePreviousFrame) {
  EXPECT_EQ(Redraw("", "a\nb\n"), "\x1b[?7l\x1b[0Ja\nb\n\x1b[?7h");
  EXPECT_EQ(Redraw("a\nb\n", "c\n"), "\x1b[?7l\x1b[2F\x1b[0Jc\n\x1b[?7h");
}

TEST(PlainProgress, SaysChangesAtOnceAndProgressNowAndThen) {
  PlainProgress progress(absl::Seconds(2));
  v1::JobStatus job = RunningJob();
  View view = kView;
  EXPECT_EQ(progress.Next(job, view),
            "2027-01-15T08:00:00+00:00 RUNNING step 512/1500 loss 2.1345   validation 2.2000 at 500"
            "   12.3k tokens/s   lr 3.00e-04   gradient 0.821   1m40s left"
            "   (2 ranks agreed on step 0)\n");
  EXPECT_EQ(progress.Next(job, view), std::nullopt) << "nothing is new";
  view.now += absl::Seconds(1);
  job.set_step(513);
  EXPECT_EQ(progress.Next(job, view), std::nullopt) << "too soon";
  view.now += absl::Seconds(1);
  EXPECT_NE(progress.Next(job, view), std::nullopt);
  job.set_state(v1::JOB_STATE_COMPLETED);
  job.set_reason("all steps are committed");
  const std::string last = progress.Next(job, view).value_or("");
  EXPECT_NE(last.find("COMPLETED step 513/1500"), std::string::npos) << last;
  EXPECT_EQ(last.find("left"), std::string::npos) << last;
}

}  // namespace
}  // namespace espalier::ctl
