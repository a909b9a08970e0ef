// `espalier-worker self-test`: whether this machine's device computes as its processor does, as
// every run finds out before it trains, for people and for espalier-agent, which reports it.
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/platform/platform.h"
#include "espalier/v1/node.pb.h"
#include "worker/memory/memory_meter.h"
#include "worker/model/self_check.h"
#include "worker/tensor/device.h"
#include "worker/verbs.h"

namespace espalier {
namespace {

absl::StatusOr<torch::ScalarType> TypeOf(const std::string& precision) {
  for (const torch::ScalarType type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    if (precision == PrecisionName(type)) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--precision is '", precision, "'; allowed: fp32, bf16, fp16"));
}

// Of what any model needs. RESOURCE_EXHAUSTED: others have the device's memory, and nothing is
// known.
absl::StatusOr<v1::PrecisionTrial> Try(torch::Device device, torch::ScalarType type) {
  DeviceTrial found;
  for (const Architecture architecture : {Architecture::kLlama, Architecture::kGpt2}) {
    const double before = found.difference;
    found = TryDevice(device, type, architecture);
    if (absl::IsResourceExhausted(found.status)) return found.status;
    found.difference = std::max(before, found.difference);
    if (!found.status.ok()) break;
  }
  v1::PrecisionTrial trial;
  trial.set_precision(std::string(PrecisionName(type)));
  trial.set_difference(found.difference);
  if (found.status.ok()) return trial;
  trial.set_failed(found.failed);
  trial.set_text(std::string(found.status.message()));
  return trial;
}

void Print(const v1::PrecisionTrial& trial) {
  if (trial.failed().empty()) {
    std::printf("%s  computes as the processor does in fp32, within %.1e of the norm\n",
                trial.precision().c_str(), trial.difference());
  } else {
    std::printf("%s  FAILED: %s\n", trial.precision().c_str(), trial.text().c_str());
  }
  std::fflush(stdout);
}

absl::Status Write(const v1::DeviceTrial& trial, const std::string& path) {
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(trial, &json).ok()) {
    return absl::InternalError("the result of the self-test is no JSON");
  }
  return WriteFileAtomically(PosixFileSystem(), path, json + "\n");
}

}  // namespace

absl::Status RunSelfTest(const SelfTestCommand& command) {
  ASSIGN_OR_RETURN(const SelectedDevice selected, SelectDevice({.name = command.device}));
  ASSIGN_OR_RETURN(const MachineMemory machine, ReadMachineMemory());
  RETURN_IF_ERROR(LimitGpuMemory(selected.device, {.physical_bytes = machine.physical_bytes}));
  std::vector<std::string> precisions = command.precisions;
  if (precisions.empty() && !selected.device.is_cpu()) precisions = {"fp32", "bf16", "fp16"};
  v1::DeviceTrial trial;
  trial.set_device(selected.device.str());
  std::printf("%s%s\n", selected.description.c_str(),
              precisions.empty() ? ": in fp32 what others are compared with" : "");
  std::string failed;
  for (const std::string& precision : precisions) {
    ASSIGN_OR_RETURN(const torch::ScalarType type, TypeOf(precision));
    ASSIGN_OR_RETURN(*trial.add_precisions(), Try(selected.device, type));
    const v1::PrecisionTrial& last = *trial.precisions().rbegin();
    Print(last);
    if (last.failed().empty()) continue;
    absl::StrAppend(&failed, failed.empty() ? "" : "; ", precision, ": ", last.failed());
  }
  if (!command.result.empty()) RETURN_IF_ERROR(Write(trial, command.result));
  if (failed.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("device ", trial.device(), " fails in ", failed));
}

}  // namespace espalier
