// What a person asked for on the command line: the options every verb has, and the way a verb
// reports, down to the exit code. Filled by app.cc, read by the verbs. Used by client.h, follow.h
// and verbs.h. Plain values and pure functions.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/rpc/local_access.h"
#include "coordinator/ctl/terminal.h"
#include "espalier/v1/operator.pb.h"

namespace espalier::ctl {

// One per kind of outcome, so that scripts need not read messages. Documented in README.md.
enum ExitCode {
  kDone = 0,
  kJobFailed = 1,    // submit --wait, watch: the job ended FAILED.
  kBadInput = 2,     // Usage, a bad job file, a value that is refused.
  kNotFound = 3,     // No such job, file or node.
  kWrongState = 4,   // The job's state does not allow it, or a file is there already.
  kUnreachable = 5,  // No espalierd answers.
  kNotAllowed = 6,   // Missing, expired or foreign certificate, no token, or not yours.
  kTimedOut = 7,
  kJobCancelled = 8,  // submit --wait, watch: the job ended CANCELLED.
  kOther = 9,         // Anything else; the message says what.
};

ExitCode ExitCodeOf(const absl::Status& status);
// For a final state; kDone for COMPLETED.
ExitCode ExitCodeOf(v1::JobState final_state);

struct GlobalOptions {
  // HOST:PORT or the state folder of an espalierd of this machine.
  std::string coordinator = kDefaultStateDir;
  std::string token_file;
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
