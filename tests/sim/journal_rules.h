// The rule "state equals journal": a coordinator that starts now decides as the running one would.
// Used by inspector.cc. Pure functions.
#pragma once

#include <string>

#include "coordinator/core/effect.h"
#include "coordinator/core/state.h"
#include "tests/sim/sim_journal.h"

namespace espalier::sim {

// Empty, or of which job or node the journal says something else than the state, when every effect
// of an event is applied. Steps may be ahead, since workers tell them again, and with them what
// they have cleared of the faults.
std::string FindForgotten(const ClusterState& state, const SimJournal& journal);

// After the fault of this row the job starts again, however often: where a pause is wanted, an
// operator starts it; and what did not start for nodes that are new to it, starts without them.
bool StartsAgainUncounted(const AppendEvent& row, const SimJournal& journal);

}  // namespace espalier::sim
