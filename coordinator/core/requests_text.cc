#include "coordinator/core/requests_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/names.h"

namespace espalier {
namespace {

// "studio, macbook (3.2 GiB resident)".
std::string Holding(const Job& job) {
  int64_t bytes = 0;
  for (const RankState& rank : job.world.ranks) bytes += rank.memory_bytes;
  const std::string nodes = NodeList(job.record.nodes);
  const double mebibytes = static_cast<double>(bytes) / (1 << 20);
  if (mebibytes < 1) return nodes;
  if (mebibytes < 1024) return absl::StrFormat("%s (%.0f MiB resident)", nodes, mebibytes);
  return absl::StrFormat("%s (%.1f GiB resident)", nodes, mebibytes / 1024);
}

}  // namespace

absl::Status UnknownJob(const ClusterState& state, const JobId& id) {
  return absl::NotFoundError(absl::StrCat("there is no job '", id.text(), "'; there are ",
                                          state.jobs.size(), " jobs: see `espalier jobs`"));
}

absl::Status NotAllowed(const JobRecord& record, absl::string_view what,
                        absl::string_view allowed) {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", record.id.text(), " is ", JobStateName(record.state), " (",
                   record.reason, "), where ", what, " is not possible; allowed: ", allowed));
}

absl::Status Ending(const JobRecord& record) {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", record.id.text(), " is ending (", record.verdict_reason,
                   "); its processes are leaving, nothing can be asked of it any more"));
}

std::string ExplainSoftPause(const Job& job) {
  return absl::StrCat("finishes its step, then uses no processor; keeps memory on ", Holding(job),
                      "; resume takes less than a second and repeats nothing");
}

std::string ExplainHardPause(const Job& job) {
  return absl::StrCat("finishes its step, writes a checkpoint, then frees memory and nodes: ",
                      Holding(job), "; resume starts new processes from that checkpoint");
}

}  // namespace espalier
