// `espalier-worker rehearse FILE`: whether this machine could train a job, as an espalier-agent
// asks before the job stops to take the machine in. What it leaves behind is of use when the job
// comes: the hash of the data is known, and files are in the system's cache.
#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/config/job_file.h"
#include "espalier/v1/agent.pb.h"
#include "worker/job_inputs.h"
#include "worker/model/self_check.h"
#include "worker/state/checkpoint.h"
#include "worker/state/replica.h"
#include "worker/tensor/device.h"
#include "worker/verbs.h"

namespace espalier {
namespace {

constexpr int64_t kRequestBytesMax = 1 << 20;

// As the launcher chooses: what the job asks for first, then the node's.
std::string DeviceOf(const v1::RehearseJob& request) {
  const std::string& asked = request.spec().launch().device();
  if (!asked.empty() && asked != "auto") return asked;
  return request.device().empty() ? "auto" : request.device();
}

}  // namespace

absl::Status RunRehearse(const RehearseCommand& command) {
  ASSIGN_OR_RETURN(const std::string text,
                   PosixFileSystem().Read(command.request, kRequestBytesMax));
  v1::RehearseJob request;
  if (!request.ParseFromString(text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        command.request, " holds no request; espalier-agent of this version writes such files"));
  }
  v1::JobSpec& spec = *request.mutable_spec();
  RETURN_IF_ERROR(ExpandJobPaths(spec));
  RETURN_IF_ERROR(SetComputeThreads(spec.launch().threads(), 1));
  ASSIGN_OR_RETURN(const JobInputs inputs, OpenJobInputs(spec));
  if (const std::string& wanted = request.data_sha256();
      !wanted.empty() && wanted != inputs.identity.data_hash) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the data in ", spec.data().path(), " is other than that of the nodes that train the job (",
        "manifest ", inputs.identity.data_hash.substr(0, 12), ", theirs ", wanted.substr(0, 12),
        "); copy the prepared folder of one of them, or run `espalier data prepare` with the same "
        "files and options"));
  }
  if (spec.model().has_from()) {
    RETURN_IF_ERROR(CheckIfCheckpoint(PosixFileSystem(), inputs.identity.spec.model().from()));
  }
  ASSIGN_OR_RETURN(const SelectedDevice device, SelectDevice({.name = DeviceOf(request)}));
  const int ranks = std::max({2, spec.parallel().min_nodes(), spec.parallel().max_nodes()});
  RETURN_IF_ERROR(FitMemory(
      spec, inputs.config, device.device,
      {.memory_limit_bytes = MemoryLimitOf(spec, request.memory_limit_bytes()), .ranks = ranks}));
  // A newcomer whose device computes wrongly is known before the others stop for it.
  ASSIGN_OR_RETURN(const Parameters::Options options,
                   ParameterOptions(inputs.config, spec.train(), device.device));
  RETURN_IF_ERROR(
      SelfTestBeforeTraining(device.device, options.compute_type, inputs.config.architecture)
          .status());
  std::printf("could train %s on %s\n", request.job_id().c_str(), device.description.c_str());
  return absl::OkStatus();
}

}  // namespace espalier
