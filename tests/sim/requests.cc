#include "tests/sim/requests.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "coordinator/core/facts.h"
#include "tests/sim/describe.h"

namespace espalier::sim {
namespace {

std::optional<RequestId> IdOf(const Event& event) {
  if (const auto* submit = std::get_if<SubmitRequested>(&event)) return submit->request;
  if (const auto* pause = std::get_if<PauseRequested>(&event)) return pause->request;
  if (const auto* resume = std::get_if<ResumeRequested>(&event)) return resume->request;
  if (const auto* cancel = std::get_if<CancelRequested>(&event)) return cancel->request;
  if (const auto* ask = std::get_if<CheckpointRequested>(&event)) return ask->request;
  return std::nullopt;
}

JobId JobOf(const Event& event) {
  if (const auto* pause = std::get_if<PauseRequested>(&event)) return pause->job;
  if (const auto* resume = std::get_if<ResumeRequested>(&event)) return resume->job;
  if (const auto* cancel = std::get_if<CancelRequested>(&event)) return cancel->job;
  if (const auto* ask = std::get_if<CheckpointRequested>(&event)) return ask->job;
  return JobId();
}

// Whether the journal says what was promised.
bool Holds(const Event& request, const JobRecord& record) {
  const DesiredState desired = record.desired;
  if (const auto* submit = std::get_if<SubmitRequested>(&request)) {
    return record.spec.name() == submit->spec.name();
  }
  if (std::holds_alternative<PauseRequested>(request)) {
    return desired == DesiredState::kPauseSoft || desired == DesiredState::kPauseHard;
  }
  if (std::holds_alternative<ResumeRequested>(request)) return desired == DesiredState::kRun;
  if (std::holds_alternative<CancelRequested>(request)) return desired == DesiredState::kCancel;
  return record.checkpoint_wanted || record.directive.run_state == RunState::kStop;
}

}  // namespace

void Requests::OnAsked(const Event& event) {
  if (const auto id = IdOf(event)) open_[*id] = event;
}

void Requests::OnReply(const Reply& reply, const SimJournal& journal) {
  const auto found = open_.find(reply.request);
  if (found == open_.end()) {
    scene_.Break(absl::StrCat("a reply to request ", reply.request.value(),
                              ", which was not asked or is answered"));
    return;
  }
  CheckTrue(found->second, reply, journal);
  open_.erase(found);
}

void Requests::CheckTrue(const Event& request, const Reply& reply, const SimJournal& journal) {
  const std::string what = absl::StrCat(Describe(request), ", ", Describe(Effect(reply)));
  const JobId asked = JobOf(request);
  if (!asked.empty() && reply.job != asked) scene_.Break("a reply about another job: " + what);
  const auto job = journal.jobs.find(reply.job);
  const bool known = job != journal.jobs.end();
  if (!reply.status.ok()) {
    const bool right = absl::IsNotFound(reply.status) != known || asked.empty();
    if (!right) scene_.Break("the wrong error: " + what);
  } else if (!known || !Holds(request, job->second)) {
    scene_.Break("a reply that is not true: " + what);
  }
}

void Requests::OnApplied(const Event& event) {
  const auto id = IdOf(event);
  if (id && open_.count(*id) != 0) {
    scene_.Break(absl::StrCat("a request that is not answered: ", Describe(event)));
  }
}

}  // namespace espalier::sim
