#include "tests/sim/requests.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/facts.h"
#include "coordinator/loop/messages.h"
#include "tests/sim/describe.h"

namespace espalier::sim {
namespace {

JobId JobOf(const OperatorRequest& request) {
  if (const auto* pause = std::get_if<v1::PauseRequest>(&request)) return JobId(pause->job_id());
  if (const auto* resume = std::get_if<v1::ResumeRequest>(&request)) return JobId(resume->job_id());
  if (const auto* cancel = std::get_if<v1::CancelRequest>(&request)) return JobId(cancel->job_id());
  if (const auto* ask = std::get_if<v1::CheckpointRequest>(&request)) return JobId(ask->job_id());
  return JobId();
}

// Whether the journal says what was promised.
bool Holds(const OperatorRequest& request, const JobRecord& record) {
  const DesiredState desired = record.desired;
  if (const auto* submit = std::get_if<v1::SubmitRequest>(&request)) {
    return record.spec.name() == submit->spec().name();
  }
  if (std::holds_alternative<v1::PauseRequest>(request)) {
    return desired == DesiredState::kPauseSoft || desired == DesiredState::kPauseHard;
  }
  if (std::holds_alternative<v1::ResumeRequest>(request)) return desired == DesiredState::kRun;
  if (std::holds_alternative<v1::CancelRequest>(request)) return desired == DesiredState::kCancel;
  return record.checkpoint_wanted || record.directive.run_state == RunState::kStop;
}

// The same of nodes; absent: it is about a job.
std::optional<bool> HoldsOfNode(const OperatorRequest& request, const SimJournal& journal) {
  const auto record = [&](const NodeName& name) {
    const auto found = journal.nodes.find(name);
    return found == journal.nodes.end() ? NodeRecord{} : found->second;
  };
  if (const auto* invited = std::get_if<NodeInvited>(&request)) {
    const NodeRecord node = record(NodeName(invited->spec.name()));
    return node.invitation && node.invitation->token_sha256 == invited->token_sha256;
  }
  if (const auto* joined = std::get_if<NodeJoined>(&request)) {
    const NodeRecord node = record(joined->node);
    return node.joined && node.certificate == joined->certificate;
  }
  if (const auto* drained = std::get_if<NodeDrained>(&request)) {
    return record(drained->node).drained.has_value();
  }
  if (const auto* allowed = std::get_if<NodeAllowed>(&request)) {
    return !record(allowed->node).drained;
  }
  if (const auto* forgotten = std::get_if<NodeForgotten>(&request)) {
    const NodeRecord node = record(forgotten->node);
    return !node.joined && !node.invitation && !node.has_agent;
  }
  return std::nullopt;
}

}  // namespace

OperatorCall Requests::Ask(const OperatorRequest& request, Answered answered,
                           std::function<void(const Check&)> answer) {
  const int64_t id = next_++;
  open_.insert(id);
  scene_.Trace(Describe(CallEvent(RequestId(id), request)));
  return {request, [this, id, request, answered = std::move(answered),
                    answer = std::move(answer)](absl::StatusOr<Answer> said) {
            answer([&](const SimJournal& journal, bool batched) {
              CheckAnswer(id, request, said, journal, batched);
              if (answered) answered(said);
            });
          }};
}

void Requests::CheckAnswer(int64_t id, const OperatorRequest& request,
                           const absl::StatusOr<Answer>& answer, const SimJournal& journal,
                           bool batched) {
  const std::string what =
      absl::StrCat(Describe(CallEvent(RequestId(id), request)), ", ",
                   answer.ok() ? absl::StrCat("ok ", answer->job_id) : answer.status().ToString());
  scene_.Trace(absl::StrCat("reply: ", what));
  if (open_.erase(id) == 0) scene_.Break("a second reply, or one to nobody: " + what);
  if (const std::optional<bool> holds = HoldsOfNode(request, journal)) {
    if (answer.ok() && !(batched || *holds)) scene_.Break("a reply that is not true: " + what);
    return;
  }
  const JobId asked = JobOf(request);
  if (answer.ok() && !asked.empty() && JobId(answer->job_id) != asked) {
    scene_.Break("a reply about another job: " + what);
  }
  const auto job = journal.jobs.find(answer.ok() ? JobId(answer->job_id) : asked);
  const bool known = job != journal.jobs.end();
  if (!answer.ok()) {
    const bool right = absl::IsNotFound(answer.status()) != known || asked.empty();
    if (!right) scene_.Break("the wrong error: " + what);
  } else if (!known || !(batched || Holds(request, job->second))) {
    scene_.Break("a reply that is not true: " + what);
  }
}

void Requests::OnTurned() {
  for (const int64_t id : taken_) {
    if (open_.count(id) != 0) scene_.Break(absl::StrCat("request ", id, " is not answered"));
  }
}

void Requests::OnCrash() {
  open_.clear();
  taken_.clear();
}

}  // namespace espalier::sim
