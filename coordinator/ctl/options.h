// What a person asked for on the command line: the options every verb has, and the way a verb
// reports. Filled by app.cc, read by the verbs. Plain values.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "coordinator/ctl/exit_code.h"
#include "coordinator/ctl/terminal.h"

namespace espalier::ctl {

struct GlobalOptions {
  std::string coordinator = "127.0.0.1:7070";
  std::string tls_ca;
  std::string tls_certificate;
  std::string tls_key;
  // How long one request may take.
  double timeout_seconds = 10;
  std::string output = "table";

  bool json() const { return output == "json"; }
};

// What a verb works with. The references outlive the run of the verb.
struct Context {
  const GlobalOptions& options;
  Terminal& terminal;
  Clock& clock;
};

// A verb's work: the exit code, or a status whose message is shown and whose code decides the exit
// code.
using Action = std::function<absl::StatusOr<ExitCode>(Context&)>;

}  // namespace espalier::ctl
