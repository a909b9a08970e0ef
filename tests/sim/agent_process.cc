#include "tests/sim/agent_process.h"

#include "absl/strings/str_cat.h"
#include "coordinator/core/node.h"

namespace espalier::sim {

void AgentProcess::After(absl::Duration wait, void (AgentProcess::*next)()) {
  scene_.timeline.After(wait, [this, next, process = process_] {
    if (alive_ && process == process_) (this->*next)();
  });
}

void AgentProcess::Begin() {
  if (alive_) return;
  alive_ = true;
  frozen_ = false;
  ++process_;
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
  return report;
}

void AgentProcess::Attach() {
  if (stream_) return;
  if (frozen_ || !options_.coordinator_up()) {
    After(scene_.chance.Milliseconds(50, 5000), &AgentProcess::Attach);
    return;
  }
  stream_ = wire_.Open(this, node(), Wire::Speaker::kAgent);
  said_at_ = scene_.timeline.now();
  speaks_since_ = said_at_;
  wire_.Up(*stream_,
           AgentAttached{.stream = *stream_,
                         .node = node(),
                         .report = Report(),
                         .instance = absl::StrCat(options_.name, "-", process_)},
           Care::kKeep);
}

void AgentProcess::KeepReporting() {
  if (stream_ && !frozen_) {
    said_at_ = scene_.timeline.now();
    wire_.Up(*stream_, AgentReported{.stream = *stream_, .report = Report()}, Care::kKeep);
  }
  After(kAgentReportEvery, &AgentProcess::KeepReporting);
}

bool AgentProcess::OnClosed(StreamId stream, const absl::Status& status) {
  if (frozen_) return false;
  if (stream != stream_ || !alive_) return true;
  stream_.reset();
  // What was decided while it was frozen arrives within a second or two.
  const bool spoke = scene_.timeline.now() - said_at_ < kAgentSilence / 2 &&
                     scene_.timeline.now() - speaks_since_ > absl::Seconds(3) &&
                     wire_.PartitionedUntil(node()) < speaks_since_;
  if (status.code() == absl::StatusCode::kAborted && spoke) {
    scene_.Break(absl::StrCat("an agent of ", node().text(), " that spoke was replaced"));
  }
  After(scene_.chance.Milliseconds(50, 5000), &AgentProcess::Attach);
  return true;
}

}  // namespace espalier::sim
