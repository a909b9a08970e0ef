#include "coordinator/service/side_notes.h"

#include <algorithm>
#include <variant>

#include "common/observe/task_figures.h"

namespace espalier {
namespace {

using SaidFigures = google::protobuf::RepeatedPtrField<v1::TaskFigure>;

// A worker says what it likes; what is a label must be one of a few.
SaidFigures Known(const SaidFigures& said) {
  SaidFigures known;
  for (const v1::TaskFigure& figure : said) {
    const bool again = std::any_of(known.begin(), known.end(), [&](const v1::TaskFigure& other) {
      return other.name() == figure.name();
    });
    if (IsTaskFigure(figure.name()) && !again) *known.Add() = figure;
  }
  return known;
}

template <typename T>
T& At(std::vector<T>& values, Rank rank) {
  const size_t index = static_cast<size_t>(std::max<int64_t>(0, rank.value()));
  if (values.size() <= index) values.resize(index + 1);
  return values[index];
}

}  // namespace

std::string CauseOf(const Event& event) {
  if (std::holds_alternative<WorkerFinished>(event)) return "worker_reported";
  if (std::holds_alternative<WorkerDetached>(event)) return "connection_lost";
  if (std::holds_alternative<ProcessesExited>(event)) return "processes_exited";
  if (std::holds_alternative<LaunchFailed>(event)) return "launch_failed";
  if (std::holds_alternative<CoordinatorStarted>(event)) return "coordinator_started";
  if (std::holds_alternative<Tick>(event)) return "no_progress";
  return "other";
}

void SideNotes::Heard(const WorkerId& worker, const v1::AttachRequest& message,
                      absl::Duration now) {
  JobNotes& notes = of(worker.job);
  if (message.has_step()) {
    At(notes.tallies, worker.rank).Reported(message.step(), now);
    At(notes.last_steps, worker.rank) = message.step();
    if (worker.rank == Rank(0)) notes.figures = Known(message.step().figures());
  }
  if (message.has_practised()) {
    At(notes.tallies, worker.rank).Reported(message.practised().accounts(), now);
  }
  if (message.has_evaluation()) {
    notes.evaluation_figures = Known(message.evaluation().figures());
  }
}

void SideNotes::Attached(const WorkerId& worker, absl::Duration now) {
  At(of(worker.job).tallies, worker.rank).Started(now);
}

void SideNotes::Moved(const JobId& job, JobState from, JobState to, const Event& event,
                      absl::Duration now) {
  if (from == to) return;
  JobNotes& notes = of(job);
  switch (to) {
    case JobState::kRecovering:
      ++notes.restarts_by_cause[CauseOf(event)];
      for (WorkerTally& tally : notes.tallies) tally.Lost(now);
      return;
    case JobState::kLaunching:
      notes.last_steps.clear();
      return;
    case JobState::kQueued:
    case JobState::kPausedHard:
      for (WorkerTally& tally : notes.tallies) tally.Stopped(now);
      return;
    case JobState::kCompleted:
    case JobState::kFailed:
    case JobState::kCancelled:
      for (WorkerTally& tally : notes.tallies) tally.Stopped(now);
      notes.final_at = now;
      return;
    case JobState::kRunning:
    case JobState::kPausing:
    case JobState::kPausedSoft:
    case JobState::kRegrouping:
    case JobState::kCancelling:
      return;
  }
}

void SideNotes::Narrow(const JobId& job, size_t ranks, absl::Duration now) {
  std::vector<WorkerTally>& tallies = of(job).tallies;
  for (size_t i = ranks; i < tallies.size(); ++i) tallies[i].Stopped(now);
}

}  // namespace espalier
