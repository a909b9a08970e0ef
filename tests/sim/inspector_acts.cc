// The rules of what the loop sends, launches and kills.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "coordinator/core/node.h"
#include "coordinator/journal/record.h"
#include "tests/sim/describe.h"
#include "tests/sim/inspector.h"
#include "tests/sim/node_rules.h"

namespace espalier::sim {

void Inspector::OnSend(StreamId stream, const v1::AttachResponse& message) {
  if (message.has_welcome()) {
    const v1::Welcome& welcome = message.welcome();
    streams_[stream] = {JobId(welcome.job_id()), Generation(welcome.generation())};
    CheckDirective(streams_[stream], FromProto(welcome.directive()));
  } else if (message.has_directive()) {
    CheckDirective(streams_[stream], FromProto(message.directive()));
  } else if (message.has_renewal() && !batched_) {
    CheckRenewal(streams_[stream]);
  }
}

void Inspector::OnKill(const Kill& kill) {
  const JobRecord& record = journal_.jobs.at(kill.key.job);
  const bool ends =
      record.generation == kill.key.generation && record.processes == Processes::kEnding;
  Require(ends || batched_, absl::StrCat("the kill of ", Describe(kill.key), " is not journaled"));
}

// Who is not wanted any more may not go on.
void Inspector::CheckRenewal(const GenerationKey& key) {
  const auto found = journal_.jobs.find(key.job);
  const bool wanted = found != journal_.jobs.end() && found->second.generation == key.generation &&
                      found->second.processes == Processes::kRunning;
  Require(wanted, absl::StrCat("the lease of ", Describe(key), " is renewed, which is not wanted"));
}

// Journal, then act; and a plan adds up to the global batch.
void Inspector::CheckDirective(const GenerationKey& key, const Directive& directive) {
  const auto found = journal_.jobs.find(key.job);
  if (!Require(found != journal_.jobs.end(), "a directive for a job that is not journaled")) return;
  const JobRecord& record = found->second;
  if (record.generation != key.generation) {
    Require(batched_, "a directive for an older generation");
    return;
  }
  const bool replaced = batched_ && directive.number < record.directive.number;
  Require(record.directive == directive || replaced,
          absl::StrCat("directive ", directive.number, " of ", Describe(key), " is not journaled"));
  const auto& sequences = directive.plan.sequences;
  const int32_t sum = std::accumulate(sequences.begin(), sequences.end(), 0);
  Require(sum == record.spec.train().global_batch(),
          absl::StrCat("the plan of ", Describe(key), " adds up to ", sum));
  Require(sequences.size() == record.nodes.size(), "the plan has another number of ranks");
}

void Inspector::OnLaunch(const Launch& launch) {
  const JobRecord& record = journal_.jobs.at(launch.key.job);
  Require(record.generation == launch.key.generation && record.nodes == launch.nodes &&
              (record.state == JobState::kLaunching || batched_),
          absl::StrCat("the launch of ", Describe(launch.key), " is not journaled"));
  if (!batched_) {
    for (const NodeName& name : launch.nodes) CheckAgentOf(name);
    const std::string forgotten = FindForgottenMemory(*state_, record, launch.nodes);
    Require(forgotten.empty(), forgotten);
  }
  for (const auto& world : worlds_) {
    if (world->over() || !world->options().external_id.empty()) continue;
    // One that nobody could end is no danger when it holds.
    if (world->orphaned() && world->may_train_until() <= scene_.timeline.now()) continue;
    Require(world->job() != launch.key.job,
            absl::StrCat(Describe(launch.key), " is launched while generation ",
                         world->generation().value(), " runs"));
    for (const NodeName& node : world->options().nodes) {
      const auto& nodes = launch.nodes;
      Require(std::find(nodes.begin(), nodes.end(), node) == nodes.end(),
              absl::StrCat(Describe(launch.key), " is launched on ", node.text(), " where ",
                           world->job().text(), " runs"));
    }
  }
}

// Nothing is launched on a node whose agent, when it has one, does not speak or has other versions.
void Inspector::CheckAgentOf(const NodeName& name) {
  const Node& node = *state_->nodes.Find(name);
  if (!node.record.has_agent) return;
  const bool speaks = node.agent.stream.has_value() &&
                      state_->now - node.agent.heard_at < kAgentSilence + absl::Seconds(3) &&
                      node.agent.report->versions().open_mpi() == "4.1.4";
  Require(speaks, absl::StrCat("a launch on ", name.text(), ", whose agent does not speak"));
}

}  // namespace espalier::sim
