#include "coordinator/launcher/mpirun_probe.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "coordinator/launcher/process.h"

namespace espalier {

absl::StatusOr<OpenMpiVersion> ProbeOpenMpi(const ProbeOptions& options, Clock& clock) {
  unlink(options.scratch.c_str());
  ASSIGN_OR_RETURN(GatedProcess process, GatedProcess::Spawn({.argv = {options.mpirun, "--version"},
                                                              .log_path = options.scratch}));
  process.Release();
  const absl::Duration deadline = clock.Monotonic() + options.limit;
  for (;;) {
    absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(process.identity().pid);
    if (!exit.ok() || exit->has_value()) break;
    if (clock.Monotonic() > deadline) {
      SignalSession(process.identity(), SIGKILL);
      return absl::DeadlineExceededError(
          absl::StrCat("`", options.mpirun, " --version` does not end"));
    }
    clock.Sleep(absl::Milliseconds(5));
  }
  std::ostringstream text;
  text << std::ifstream(options.scratch).rdbuf();
  unlink(options.scratch.c_str());
  return ParseOpenMpiVersion(text.str());
}

}  // namespace espalier
