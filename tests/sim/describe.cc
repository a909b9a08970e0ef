#include "tests/sim/describe.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/holders.h"
#include "coordinator/core/usable.h"

namespace espalier::sim {

std::string Describe(const GenerationKey& key) {
  return absl::StrCat(key.job.text(), "/", key.generation.value());
}

namespace {

std::string Text(const Directive& directive) {
  static constexpr const char* kNames[] = {"?", "run", "pause", "stop"};
  std::string text = absl::StrCat("directive ", directive.number, " ",
                                  kNames[static_cast<int>(directive.run_state)]);
  if (directive.checkpoint_before_stop) absl::StrAppend(&text, " after a checkpoint");
  if (directive.checkpoint_request > 0) {
    absl::StrAppend(&text, " checkpoint-request ", directive.checkpoint_request);
  }
  absl::StrAppend(&text, " plan ", directive.plan.number, " [",
                  absl::StrJoin(directive.plan.sequences, " "), "]");
  for (const RankLimit& limit : directive.limits) {
    absl::StrAppend(&text, " ", limit.part, "<=", limit.largest_share);
  }
  return text;
}

std::string ProcessesName(Processes processes) {
  switch (processes) {
    case Processes::kNone:
      return "none";
    case Processes::kRunning:
      return "running";
    case Processes::kEnding:
      return "ending";
  }
  return "?";
}

std::string OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCompleted:
      return "completed";
    case Outcome::kStopped:
      return "stopped";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kLost:
      return "lost";
  }
  return "?";
}

struct EventText {
  std::string operator()(const CoordinatorStarted& event) const {
    return absl::StrCat("> started with ", event.jobs.size(), " jobs, ", event.launches.size(),
                        " launches");
  }
  std::string operator()(const Tick&) const { return ""; }
  std::string operator()(const WorkerHeartbeat&) const { return ""; }
  std::string operator()(const SubmitRequested& event) const {
    return absl::StrCat("> submit ", event.spec.name());
  }
  std::string operator()(const PauseRequested& event) const {
    return absl::StrCat("> pause ", event.job.text(),
                        event.kind == PauseKind::kHard ? " hard" : " soft");
  }
  std::string operator()(const ResumeRequested& event) const {
    return absl::StrCat("> resume ", event.job.text());
  }
  std::string operator()(const CancelRequested& event) const {
    return absl::StrCat("> cancel ", event.job.text());
  }
  std::string operator()(const CheckpointRequested& event) const {
    return absl::StrCat("> checkpoint ", event.job.text());
  }
  std::string operator()(const WorkerAttached& event) const {
    return absl::StrCat("> stream ", event.stream.value(), " hello ", event.worker.job.text(), "/",
                        event.worker.generation.value(), " rank ", event.worker.rank.value(),
                        event.external_id.empty() ? "" : " by hand ", event.external_id);
  }
  std::string operator()(const WorkerFoundState& event) const {
    return absl::StrCat("> stream ", event.stream.value(), " found step ", event.step.value());
  }
  std::string operator()(const WorkerReady& event) const {
    return absl::StrCat("> stream ", event.stream.value(), " ready at ", event.next_step.value());
  }
  std::string operator()(const WorkerStepReported& event) const {
    return absl::StrCat("> stream ", event.stream.value(), " step ", event.figures.step.value());
  }
  std::string operator()(const WorkerPractised& event) const {
    return absl::StrCat("> stream ", event.stream.value(), " practised ", event.kept, " of step ",
                        event.step.value());
  }
  std::string operator()(const WorkerEvaluated& event) const {
    return absl::StrCat("> stream ", event.stream.value(), " evaluated");
  }
  std::string operator()(const WorkerCheckpointed& event) const {
    return absl::StrCat("> stream ", event.stream.value(), " checkpoint of ",
                        event.checkpoint.step.value());
  }
  std::string operator()(const DirectiveAcked& event) const {
    return absl::StrCat("> stream ", event.stream.value(), " obeyed ", event.number);
  }
  std::string operator()(const WorkerFinished& event) const {
    return absl::StrCat("> stream ", event.stream.value(),
                        " finished: ", OutcomeName(event.outcome), " at ", event.next_step.value());
  }
  std::string operator()(const WorkerDetached& event) const {
    return absl::StrCat("> stream ", event.stream.value(), " is gone");
  }
  std::string operator()(const AgentAttached& event) const {
    return absl::StrCat("> stream ", event.stream.value(), " agent of ", event.node.text(),
                        event.instance.empty() ? "" : ", process ", event.instance);
  }
  std::string operator()(const AgentReported&) const { return ""; }
  std::string operator()(const AgentDetached& event) const {
    return absl::StrCat("> stream ", event.stream.value(), " of an agent is gone");
  }
  std::string operator()(const NodeInvited& event) const {
    return absl::StrCat("> node ", event.spec.name(), " may join");
  }
  std::string operator()(const NodeJoined& event) const {
    return absl::StrCat("> a machine joins as ", event.node.text());
  }
  std::string operator()(const NodeForgotten& event) const {
    return absl::StrCat("> forget node ", event.node.text(), event.revoke ? ", revoke" : "");
  }
  std::string operator()(const NodeDrained& event) const {
    return absl::StrCat("> drain node ", event.node.text());
  }
  std::string operator()(const NodeAllowed& event) const {
    return absl::StrCat("> allow node ", event.node.text());
  }
  std::string operator()(const NodeSet& event) const {
    return absl::StrCat("> set node ", event.node.text());
  }
  std::string operator()(const VersionsFound&) const { return "> versions found"; }
  std::string operator()(const LaunchFailed& event) const {
    return absl::StrCat("> launch of ", Describe(event.key), " failed");
  }
  std::string operator()(const ProcessesExited& event) const {
    return absl::StrCat("> processes of ", Describe(event.key), " exited",
                        event.unconfirmed.empty() ? "" : ", but perhaps not on ",
                        event.unconfirmed.empty() ? "" : NodeList(event.unconfirmed));
  }
};

struct EffectText {
  std::string operator()(const PersistJob& effect) const {
    const JobRecord& record = effect.record;
    return absl::StrCat("journal ", record.id.text(), ": ", JobStateName(record.state),
                        " generation ", record.generation.value(), " processes ",
                        ProcessesName(record.processes), " step ", record.step.value());
  }
  std::string operator()(const ForgetJob& effect) const {
    return absl::StrCat("forget job ", effect.job.text());
  }
  std::string operator()(const PersistNode& effect) const {
    return absl::StrCat("journal node ", effect.record.name.text(), ": ",
                        effect.record.drained ? "drained, " : "",
                        effect.record.illness.ailment == Ailment::kNone
                            ? ""
                            : absl::StrCat(effect.record.illness.why, ", "),
                        effect.record.set_aside_reason.empty()
                            ? absl::StrCat(effect.record.faults.size(), " faults")
                            : absl::StrCat("set aside, ", effect.record.set_aside_reason));
  }
  std::string operator()(const AppendEvent& effect) const {
    return absl::StrCat("history ", effect.job.text(), " #", effect.number, " ",
                        JobStateName(effect.state), ": ", effect.text);
  }
  std::string operator()(const Welcome& effect) const {
    return absl::StrCat("stream ", effect.stream.value(), " welcome to ", effect.worker.job.text(),
                        "/", effect.worker.generation.value(), " ", Text(effect.directive),
                        effect.least_held_by.empty() ? ""
                                                     : absl::StrCat(" least ", effect.least.value(),
                                                                    " of ", effect.least_held_by),
                        effect.keep_warm ? " in memory" : "");
  }
  std::string operator()(const SendDirective& effect) const {
    return absl::StrCat("stream ", effect.stream.value(), " ", Text(effect.directive));
  }
  std::string operator()(const RenewLease& effect) const {
    return absl::StrCat("stream ", effect.stream.value(), " renews the lease from beat ",
                        effect.beat);
  }
  std::string operator()(const CloseStream& effect) const {
    return absl::StrCat("stream ", effect.stream.value(), " close: ", effect.status.ToString());
  }
  std::string operator()(const DropMemory& effect) const {
    return absl::StrCat("stream ", effect.stream.value(), " drops the memory of ",
                        effect.job.text(), " up to step ", effect.step.value(),
                        effect.history == 0 ? "" : absl::StrCat(" of history ", effect.history));
  }
  std::string operator()(const Rehearse& effect) const {
    return absl::StrCat("stream ", effect.stream.value(), " rehearses ", effect.job.text(), " on ",
                        effect.node.text());
  }
  std::string operator()(const Launch& effect) const {
    return absl::StrCat("launch ", Describe(effect.key), " on ", NodeList(effect.nodes));
  }
  std::string operator()(const Kill& effect) const {
    return absl::StrCat("kill ", Describe(effect.key));
  }
  std::string operator()(const Reply& effect) const {
    if (!effect.status.ok()) return absl::StrCat("reply: ", effect.status.ToString());
    return absl::StrCat("reply: ok ", effect.job.text(),
                        effect.nothing_to_do ? " (nothing to do)" : "",
                        effect.explanation.empty() ? "" : ", ", effect.explanation);
  }
};

}  // namespace

std::string Describe(const Event& event) { return std::visit(EventText{}, event); }
std::string Describe(const Effect& effect) { return std::visit(EffectText{}, effect); }

std::vector<std::string> Describe(const ClusterState& state) {
  std::vector<std::string> lines;
  for (const auto& [id, job] : state.jobs) {
    const JobRecord& record = job.record;
    if (IsFinal(record.state)) continue;
    const Holders holders(state, record);
    lines.push_back(absl::StrCat(
        id.text(), " of priority ", record.spec.priority(), " for ",
        record.spec.parallel().min_nodes(), " to ", MaxNodes(record), " of [",
        absl::StrJoin(record.spec.parallel().nodes(), " "), "]: ", JobStateName(record.state),
        ", processes ", ProcessesName(record.processes), ", nodes ", NodeList(record.nodes),
        holders.needed() ? absl::StrCat(", needs ", holders.Describe()) : "", ": ", record.reason));
  }
  for (const Node& node : state.nodes) {
    lines.push_back(absl::StrCat(node.record.name.text(), node.holder.empty() ? "" : " of ",
                                 node.holder.text(), " ",
                                 Describe(state, node, {NodeObstacle(state, node), {}})));
  }
  return lines;
}

}  // namespace espalier::sim
