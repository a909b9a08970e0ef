// Newcomer: a machine that the cluster file does not name: an operator invites it, it joins with
// its token, its agent speaks for it, jobs run there; it is forgotten, its agent goes on trying,
// and it may be invited again. Replies may be lost with an espalierd. Used by simulation.h. One
// thread.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>

#include "coordinator/loop/inbox.h"
#include "tests/sim/agent_process.h"
#include "tests/sim/scene.h"
#include "tests/sim/wire.h"

namespace espalier::sim {

class Newcomer {
 public:
  using Answered = std::function<void(const absl::StatusOr<Answer>&)>;
  // Asks espalierd; the answer may never come.
  using Asks = std::function<void(const OperatorRequest&, Answered)>;
  Newcomer(Scene& scene, Wire& wire, AgentProcess::Options agent, Asks asks)
      : scene_(scene), agent_(scene, wire, std::move(agent)), asks_(std::move(asks)) {}

  // After a while.
  void Begin();
  // It is a node, as far as the operator knows.
  bool member() const { return member_; }
  const NodeName& node() const { return agent_.node(); }

 private:
  void After(int64_t least_ms, int64_t most_ms, void (Newcomer::*next)());
  // Until it is a member or nobody cares any more.
  void Invite();
  void Join();
  void OnJoined(const std::string& token, const std::string& serial,
                const absl::StatusOr<Answer>& answer);
  // An operator forgets the node, or what was begun and not finished.
  void Forget();

  Scene& scene_;
  AgentProcess agent_;
  const Asks asks_;
  bool member_ = false;
  // The operator has asked to forget it, and has heard nothing yet.
  bool leaves_ = false;
  int64_t tokens_ = 0;
  int64_t serials_ = 0;
  std::string token_;
  std::string serial_;
  // Of which the operator has read that they were used.
  std::set<std::string> used_;
};

}  // namespace espalier::sim
