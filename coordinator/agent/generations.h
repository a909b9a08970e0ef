// Generations on this node: Open MPI's daemons, each in a session of its own that holds every
// process of its generation here, recorded in the state folder before it starts, so that whoever
// started them, all of it can be found and ended. Used by coordinator/agent/agent.cc. One thread.
//
//          Start          End, orphaned, or the daemon has ended         nothing left
//   (none) -----> running ----------------------------------------> ending --------> (reported)
//            ^ an earlier agent's record        SIGTERM, after the grace SIGKILL
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/platform/process.h"
#include "espalier/v1/agent.pb.h"

namespace espalier {

struct GenerationsOptions {
  // Holds generations/JOB.N.
  std::string state_dir;
  // Where the agent's own installation of Open MPI has its daemon.
  std::string open_mpi_folder;
  // Between SIGTERM and SIGKILL.
  absl::Duration grace = absl::Seconds(2);
};

class Generations {
 public:
  // Takes over what an earlier agent left: its daemons go on. An error where that cannot be read.
  // `now` is monotonic, as everywhere.
  static absl::StatusOr<Generations> Open(GenerationsOptions options);

  // The daemon's pid. INVALID_ARGUMENT: a command that is refused; ALREADY_EXISTS: something of the
  // generation runs here.
  absl::StatusOr<int64_t> Start(const v1::StartDaemon& request);
  void End(const GenerationKey& key);
  // Ends every generation that may not go on without the coordinator for so long.
  void EndOrphans(absl::Duration alone);
  // Carries on with what is under way; what espalierd is to be told.
  std::vector<v1::AgentMessage> Poll(absl::Duration now);

  std::vector<GenerationKey> running() const;
  bool empty() const { return entries_.empty(); }
  // Something is being ended: Poll soon again.
  bool ending() const;

 private:
  struct Entry {
    ProcessIdentity daemon;
    bool own_child = false;
    int64_t exec_id = 0;
    absl::Duration orphan_limit;
    bool end_wanted = false;
    std::optional<absl::Duration> kill_at;
    std::optional<ExitStatus> exit;
  };

  explicit Generations(GenerationsOptions options) : options_(std::move(options)) {}
  absl::Status TakeOver();
  absl::StatusOr<GatedProcess> Spawn(const v1::StartDaemon& request, const std::string& folder);
  std::string Folder(const GenerationKey& key) const;
  bool Gone(Entry& entry, absl::Duration now);
  void Report(const GenerationKey& key, const Entry& entry, std::vector<v1::AgentMessage>& news);

  GenerationsOptions options_;
  std::map<GenerationKey, Entry> entries_;
  // Asked to end, and nothing of it is here.
  std::vector<GenerationKey> unknown_;
};

GenerationKey KeyOf(const v1::GenerationName& name);
v1::GenerationName NameOf(const GenerationKey& key);

}  // namespace espalier
