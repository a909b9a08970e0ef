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

}  // namespace espalier::conformance
