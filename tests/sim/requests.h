// Requests: what the operator of a run has asked, and the rule that each request that is decided is
// answered exactly once, about the right job, and with what is true by then. Used by simulation.h
// and sim_coordinator.h. One thread.
#pragma once

#include <map>
#include <string>

#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "tests/sim/scene.h"
#include "tests/sim/sim_journal.h"

namespace espalier::sim {

class Requests {
 public:
  explicit Requests(Scene& scene) : scene_(scene) {}

  // The core has decided; the reply is among the effects, which are not applied yet.
  void OnAsked(const Event& event);
  void OnReply(const Reply& reply, const SimJournal& journal);
  // Every effect of the event is applied: an answer must have come.
  void OnApplied(const Event& event);

 private:
  void CheckTrue(const Event& request, const Reply& reply, const SimJournal& journal);

  Scene& scene_;
  // Those that wait for their reply.
  std::map<RequestId, Event> open_;
};

}  // namespace espalier::sim
