// What a person reads of a run without espalierd.
#include "worker/train/reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace espalier {
namespace {

using ::testing::HasSubstr;

class SetClock final : public Clock {
 public:
  absl::Time Now() override { return absl::UnixEpoch() + now; }
  absl::Duration Monotonic() override { return now; }
  void Sleep(absl::Duration duration) override { now += duration; }

  absl::Duration now;
};

template <typename Body>
std::string LogOf(Body body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

v1::StepReport ReportOf(int64_t number) {
  v1::StepReport report;
  report.set_step(number);
  report.set_loss(2.5);
  report.set_tokens(100);
  report.set_step_seconds(0.5);
  return report;
}

TEST(ConsoleReporter, WritesTheFirstAndTheLastStepAndALineAnInterval) {
  SetClock clock;
  ConsoleReporter console(clock, /*total_steps=*/4, absl::Seconds(10));
  EXPECT_THAT(LogOf([&] { console.OnStep(ReportOf(0)); }), HasSubstr("step 1/4  loss 2.5000"));
  EXPECT_EQ(LogOf([&] { console.OnStep(ReportOf(1)); }), "");
  clock.now += absl::Seconds(10);
  EXPECT_THAT(LogOf([&] { console.OnStep(ReportOf(2)); }), HasSubstr("200 tokens/s"));
  EXPECT_THAT(LogOf([&] { console.OnStep(ReportOf(3)); }), HasSubstr("step 4/4"));
}

TEST(ConsoleReporter, FiguresOfTheTaskEndTheLine) {
  SetClock clock;
  ConsoleReporter console(clock, /*total_steps=*/4, absl::Seconds(10));
  v1::StepReport step = ReportOf(0);
  *step.mutable_figures() = ToProto({{"reward", 0.25}, {"completion_tokens", 31.5}});
  EXPECT_THAT(LogOf([&] { console.OnStep(step); }),
              HasSubstr(" left  reward 0.25  completion_tokens 31.5\n"));
  v1::EvaluationReport evaluation;
  evaluation.set_step(1);
  evaluation.set_loss(1.5);
  *evaluation.mutable_figures() = ToProto({{"solve_rate", 1}});
  EXPECT_THAT(LogOf([&] { console.OnEvaluation(evaluation); }),
              HasSubstr("validation after step 1: loss 1.5000  solve_rate 1 (0 tokens"));
}

TEST(ConsoleReporter, NamesWhatTheTaskCounts) {
  struct {
    v1::Task task;
    const char* step;
    const char* evaluation;
  } const cases[] = {{v1::TASK_SFT, "200 tokens/s", "(100 tokens, "},
                     {v1::TASK_DPO, "200 pairs/s", "(100 pairs, "},
                     {v1::TASK_TRM, "200 samples/s", "(100 samples, "},
                     {v1::TASK_GRPO, "200 tokens/s", "(100 prompts, "},
                     {v1::TASK_RFT, "200 tokens/s", "(100 prompts, "}};
  for (const auto& [task, step, evaluation] : cases) {
    SetClock clock;
    ConsoleReporter console(clock, /*total_steps=*/4, absl::Seconds(10), UnitsOf(task));
    EXPECT_THAT(LogOf([&] { console.OnStep(ReportOf(0)); }), HasSubstr(step));
    v1::EvaluationReport report;
    report.set_tokens(100);
    EXPECT_THAT(LogOf([&] { console.OnEvaluation(report); }), HasSubstr(evaluation));
  }
}

}  // namespace
}  // namespace espalier
