// Processes that outlive espalierd: starting one detached behind a gate, knowing it again after a
// restart, and ending it with all its descendants; also those of workers, spoken with through
// pipes. Used by coordinator/launcher, coordinator/agent and worker/reward. Thread rule: free
// functions, any thread; a GatedProcess belongs to one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace espalier {

// The identity of a living process. NOT_FOUND: there is none with this pid (a zombie is none).
absl::StatusOr<ProcessIdentity> IdentifyProcess(int64_t pid);
bool IsAlive(const ProcessIdentity& process);

// Every process of this machine that this user may see.
std::vector<int64_t> ListProcessIds();

// Closes the descriptors from `first` to `last`. Async-signal-safe.
void CloseDescriptors(int first, int last);

// Names this run of the machine since it was switched on, whatever becomes of its clock. The start
// of a process that IdentifyProcess gives is "BOOT/TIME".
const std::string& BootId();
// Whether the process started since `boot_id` began; false for identities of any other form.
bool IsOfBoot(const ProcessIdentity& process, absl::string_view boot_id);
bool IsOfThisBoot(const ProcessIdentity& process);

// Sends `signal` (0: none) to every living process of the session led by `leader`; how many there
// were. The leader itself may be gone, its session lives on in its descendants; none is touched
// when its pid means another process by now.
int SignalSession(const ProcessIdentity& leader, int signal);

struct SpawnOptions {
  // Path or name in PATH, then the arguments.
  std::vector<std::string> argv;
  // NAME=VALUE, added to (or in place of) the environment of this process.
  std::vector<std::string> environment;
  // kNothing: the program's environment is `environment` alone.
  enum class Inherit { kAll, kNothing } inherit = Inherit::kAll;
  // Where the program runs; empty: where this process does.
  std::string folder;
  // Receives stdout and stderr, appended; created when absent. stdin is /dev/null.
  std::string log_path;
  // Descriptors that the program gets in place of these; they stay the caller's. With both `output`
  // and `errors` there need not be a log.
  int input = -1;
  int output = -1;
  int errors = -1;
  // kGroup: a process group of its own in this session, which whoever ends this session ends too.
  enum class Apart { kSession, kGroup } apart = Apart::kSession;
};

// A child in a session, or group, of its own that waits, having done nothing visible, until
// Release(). If the object or this whole process goes first, the child exits without having run the
// program.
class GatedProcess {
 public:
  static absl::StatusOr<GatedProcess> Spawn(const SpawnOptions& options);
  GatedProcess(GatedProcess&& other) noexcept;
  GatedProcess& operator=(GatedProcess&& other) noexcept;
  ~GatedProcess();

  const ProcessIdentity& identity() const { return identity_; }
  // Lets the program start. Its failure to do so shows as exit status 127 and a line in the log.
  void Release();

 private:
  GatedProcess(ProcessIdentity identity, int gate) : identity_(std::move(identity)), gate_(gate) {}

  ProcessIdentity identity_;
  int gate_ = -1;
};

// How a child of this process ended; nullopt while it runs. FAILED_PRECONDITION: not our child.
struct ExitStatus {
  int code = 0;
  int signal = 0;
};
absl::StatusOr<std::optional<ExitStatus>> PollChild(int64_t pid);

}  // namespace espalier
