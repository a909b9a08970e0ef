// AgentProcess: the agent of a simulated node: attaches, reports, freezes, dies and comes back as
// another process; a second one of the same name may try its luck. Used by simulation.h. One
// thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "tests/sim/scene.h"
#include "tests/sim/wire.h"

namespace espalier::sim {

class AgentProcess : public WorkerEnd {
 public:
  // `name` tells its processes from those of others.
  struct Options {
    NodeName node;
    std::string name;
    std::function<bool()> coordinator_up;
  };
  AgentProcess(Scene& scene, Wire& wire, Options options)
      : scene_(scene), wire_(wire), options_(std::move(options)) {}

  // A new process, with the certificate of that serial number, if it has one.
  void Begin(const std::string& serial = "");
  // Vanishes; what it sent still arrives.
  void End();
  void Freeze(absl::Duration time);
  void Cut();
  // Says for so long that its Open MPI is another one.
  void Misreport(absl::Duration time);
  const NodeName& node() const { return options_.node; }

  bool OnMessage(StreamId stream, const std::string& bytes) override;
  bool OnClosed(StreamId stream, const absl::Status& status) override;

 private:
  // Does it later, unless this process has ended by then.
  void After(absl::Duration wait, void (AgentProcess::*next)());
  void Attach();
  void KeepReporting();
  v1::NodeReport Report() const;
  // Finds out whether the job could run here.
  void Rehearse(const std::string& job);
  void EndRehearsal();
  void ForgetRehearsal();
  // It has not been able to look at what is in memory by then.
  v1::NodeReport FirstReport();

  Scene& scene_;
  Wire& wire_;
  const Options options_;
  std::string serial_;
  bool alive_ = false;
  bool frozen_ = false;
  bool misreports_ = false;
  int64_t process_ = 0;
  bool looked_ = false;
  v1::Rehearsal rehearsal_;
  std::optional<StreamId> stream_;
  // When it spoke last, and since when it has done so as often as it should.
  absl::Time said_at_ = absl::InfinitePast();
  absl::Time speaks_since_ = absl::InfinitePast();
};

}  // namespace espalier::sim
