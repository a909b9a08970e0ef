// The rules every Collective keeps, as functions that each rank runs on its own member. Used by
// in_process_test.cc (threads) and tests/mpi (processes under mpirun).
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "worker/collective/collective.h"

namespace espalier::conformance {

struct Rule {
  std::string name;
  void (*check)(Collective& collective);
  friend void PrintTo(const Rule& rule, std::ostream* out) { *out << rule.name; }
};

const std::vector<Rule>& Rules();
// Rules after which the collective is of no more use: each runs on a new world of at least 2 ranks.
const std::vector<Rule>& FailureRules();

}  // namespace espalier::conformance
