#include "tests/sim/agent_process.h"

#include "absl/strings/str_cat.h"
#include "coordinator/core/node.h"
#include "espalier/v1/agent.pb.h"

namespace espalier::sim {

void AgentProcess::After(absl::Duration wait, void (AgentProcess::*next)()) {
  scene_.timeline.After(wait, [this, next, process = process_] {
    if (alive_ && process == process_) (this->*next)();
  });
}

void AgentProcess::Begin(const std::string& serial) {
  if (!serial.empty() && serial != serial_) End();
  if (alive_) return;
  if (!serial.empty()) serial_ = serial;
  alive_ = true;
  frozen_ = false;
  ++process_;
  looked_ = false;
  rehearsal_.Clear();
  Attach();
  KeepReporting();
}

void AgentProcess::End() {
  if (!alive_) return;
  alive_ = false;
  if (stream_) wire_.CloseByWorker(*stream_);
  stream_.reset();
}

void AgentProcess::Freeze(absl::Duration time) {
  if (!alive_ || frozen_) return;
  frozen_ = true;
  scene_.timeline.After(time, [this] {
    frozen_ = false;
    speaks_since_ = scene_.timeline.now();
  });
}

void AgentProcess::Cut() {
  if (stream_) wire_.Cut(*stream_);
}

void AgentProcess::Misreport(absl::Duration time) {
  misreports_ = true;
  scene_.timeline.After(time, [this] { misreports_ = false; });
}

v1::NodeReport AgentProcess::Report() const {
  v1::NodeReport report;
  report.mutable_versions()->set_open_mpi(misreports_ ? "5.0.7" : "4.1.4");
  report.set_unix_seconds(absl::ToUnixSeconds(scene_.timeline.now()));
  scene_.memories.AddTo(report, node());
  for (const auto& [job, nodes] : scene_.seen) {
    const auto seen = nodes.find(node());
    if (seen == nodes.end()) continue;
    v1::HeldState& held = *report.add_held();
    held.set_job_id(job.text());
    held.set_step(seen->second.value());
  }
  const auto hot = scene_.hot_until.find(node());
  const bool is_hot = hot != scene_.hot_until.end() && scene_.timeline.now() < hot->second;
  report.mutable_condition()->set_heat(is_hot ? v1::NODE_PRESSURE_CRITICAL
                                              : v1::NODE_PRESSURE_NORMAL);
  if (!rehearsal_.job_id().empty()) *report.mutable_rehearsal() = rehearsal_;
  // Somebody pulls the plug for some minutes now and then, on one node after the other.
  const int64_t minutes = absl::ToUnixSeconds(scene_.timeline.now()) / 60;
  const auto turn = static_cast<int64_t>(node().text().back());
  report.mutable_condition()->set_power((minutes + turn) % 3 == 0 ? v1::NODE_POWER_BATTERY
                                                                  : v1::NODE_POWER_MAINS);
  return report;
}

void AgentProcess::Rehearse(const std::string& job) {
  if (rehearsal_.job_id() == job) return;
  rehearsal_.set_job_id(job);
  rehearsal_.set_state(v1::REHEARSAL_STATE_RUNNING);
  After(scene_.chance.Milliseconds(100, 20000), &AgentProcess::EndRehearsal);
}

// What starts on a barren node fails, whatever is tried there first.
void AgentProcess::EndRehearsal() {
  if (rehearsal_.state() != v1::REHEARSAL_STATE_RUNNING) return;
  const auto until = scene_.barren_until.find(node());
  const bool barren = until != scene_.barren_until.end() && scene_.timeline.now() < until->second;
  const bool ready = !barren && !scene_.Fault(20);
  rehearsal_.set_state(ready ? v1::REHEARSAL_STATE_READY : v1::REHEARSAL_STATE_FAILED);
  rehearsal_.set_text(ready ? "" : "its data is not there");
  // What was found counts for a while.
  After(ready ? absl::Minutes(10) : absl::Minutes(1), &AgentProcess::ForgetRehearsal);
  if (ready) scene_.rehearsed.insert({node(), JobId(rehearsal_.job_id())});
}

void AgentProcess::ForgetRehearsal() { rehearsal_.Clear(); }

v1::NodeReport AgentProcess::FirstReport() {
  v1::NodeReport report = Report();
  if (!looked_ && scene_.chance.OneIn(5)) {
    report.clear_warm();
    report.set_warm_unknown(true);
  }
  looked_ = true;
  return report;
}

void AgentProcess::Attach() {
  if (stream_) return;
  if (frozen_ || !options_.coordinator_up()) {
    After(scene_.chance.Milliseconds(50, 5000), &AgentProcess::Attach);
    return;
  }
  stream_ = wire_.Open(this, node(), Wire::Speaker::kAgent, serial_);
  said_at_ = scene_.timeline.now();
  speaks_since_ = said_at_;
  v1::AgentMessage message;
  v1::AgentHello& hello = *message.mutable_hello();
  hello.set_node(node().text());
  hello.set_instance(absl::StrCat(options_.name, "-", process_));
  *hello.mutable_report() = FirstReport();
  wire_.Up(*stream_, message, Care::kKeep);
}

void AgentProcess::KeepReporting() {
  if (stream_ && !frozen_) {
    said_at_ = scene_.timeline.now();
    v1::AgentMessage message;
    *message.mutable_report() = Report();
    wire_.Up(*stream_, message, Care::kKeep);
  }
  After(scene_.ByClockOf(node(), kAgentReportEvery), &AgentProcess::KeepReporting);
}

bool AgentProcess::OnMessage(StreamId stream, const std::string& bytes) {
  if (frozen_) return false;
  if (stream != stream_ || !alive_) return true;
  v1::AgentCommand command;
  command.ParseFromString(bytes);
  if (command.has_rehearse()) {
    Rehearse(command.rehearse().job_id());
  } else if (command.has_drop()) {
    const v1::DropWarm& drop = command.drop();
    scene_.memories.Drop(node(), JobId(drop.job_id()), drop.history(), Step(drop.step()));
  }
  return true;
}

bool AgentProcess::OnClosed(StreamId stream, const absl::Status& status) {
  if (frozen_) return false;
  if (stream != stream_ || !alive_) return true;
  const bool deaf = wire_.Deaf(stream);
  stream_.reset();
  // What was decided while it was frozen arrives when the journal's disk has written it.
  const bool spoke = scene_.timeline.now() - said_at_ < kAgentSilence / 2 &&
                     scene_.timeline.now() - speaks_since_ > absl::Seconds(20) && !deaf &&
                     wire_.PartitionedUntil(node()) < speaks_since_;
  if (status.code() == absl::StatusCode::kAborted && spoke) {
    scene_.Break(absl::StrCat("an agent of ", node().text(), " that spoke was replaced"));
  }
  After(scene_.chance.Milliseconds(50, 5000), &AgentProcess::Attach);
  return true;
}

}  // namespace espalier::sim
