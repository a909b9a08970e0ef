#include "worker/open_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/platform/platform.h"
#include "worker/generation/text_stream.h"
#include "worker/kernels/parallel.h"
#include "worker/memory/memory_meter.h"
#include "worker/model/self_check.h"
#include "worker/state/checkpoint.h"
#include "worker/state/model_folder.h"
#include "worker/tensor/device.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

absl::StatusOr<torch::ScalarType> TypeOf(const std::string& precision) {
  if (precision == "fp32") return torch::kFloat;
  if (precision == "bf16") return torch::kBFloat16;
  if (precision == "fp16") return torch::kHalf;
  return absl::InvalidArgumentError(
      absl::StrCat("precision is '", precision, "'; allowed: fp32, bf16, fp16"));
}

// On MPS, as runs do before they train: memory has a limit below which nothing is swapped, and what
// the GPU computes is what the processor computes.
absl::Status PrepareGpu(torch::Device device, torch::ScalarType type, const std::string& folder) {
  if (!device.is_mps()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const MachineMemory machine, ReadMachineMemory());
  RETURN_IF_ERROR(LimitGpuMemory(device, {.physical_bytes = machine.physical_bytes}));
  ASSIGN_OR_RETURN(const DecoderConfig config, ReadModelConfig(folder));
  return SelfTest(device, type, config.architecture).status();
}

}  // namespace

absl::StatusOr<OpenedModel> OpenModel(const ModelPlace& place) {
  ASSIGN_OR_RETURN(const torch::ScalarType type, TypeOf(place.precision));
  RETURN_IF_ERROR(SetComputeThreads(place.threads, /*workers_here=*/1));
  cpu::OnEachThread(MarkComputeThread);
  OpenedModel opened;
  ASSIGN_OR_RETURN(opened.folder, FindModelFolder(place.folder));
  if (opened.folder == place.folder) {
    RETURN_IF_ERROR(CheckIfCheckpoint(PosixFileSystem(), opened.folder));
  }
  ASSIGN_OR_RETURN(const SelectedDevice device, SelectDevice({.name = place.device}));
  ASSIGN_OR_RETURN(opened.tokenizer, OpenTokenizer(opened.folder));
  RETURN_IF_ERROR(PrepareGpu(device.device, type, opened.folder));
  ASSIGN_OR_RETURN(PretrainedModel model,
                   LoadPretrained(opened.folder, {.device = device.device, .compute_type = type},
                                  place.adapter));
  opened.model = std::make_unique<PretrainedModel>(std::move(model));
  if (opened.config().recursion) {
    opened.recursive = std::make_unique<RecursiveModel>(opened.config(), opened.model->parameters);
  } else {
    opened.decoder = std::make_unique<Decoder>(opened.config(), opened.model->parameters);
  }
  opened.stop_ids = StopIds(opened.config().eos_token_ids, *opened.tokenizer);
  return opened;
}

absl::StatusOr<OpenedModel> OpenDecoder(const ModelPlace& place) {
  ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(place));
  if (opened.decoder != nullptr) return opened;
  return absl::InvalidArgumentError(
      absl::StrCat(opened.folder,
                   " holds a recursive model, which keeps nothing from one token to the next; "
                   "espalier generate continues a prompt with it"));
}

}  // namespace espalier
