#include "worker/job_inputs.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/config/epochs.h"
#include "common/observe/log.h"
#include "common/platform/platform.h"
#include "worker/generation/text_stream.h"
#include "worker/memory/memory_advice.h"
#include "worker/memory/memory_meter.h"
#include "worker/model/adapter_files.h"
#include "worker/model/pretrained.h"
#include "worker/state/model_folder.h"
#include "worker/state/replica.h"
#include "worker/task/open_task.h"
#include "worker/tensor/device.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

constexpr absl::Duration kLogInterval = absl::Seconds(2);

// Told how far hashing the data is, tells the log now and then.
std::function<void(int64_t, int64_t)> TellOfHashing() {
  return [next = RealClock().Monotonic() + kLogInterval](int64_t done, int64_t total) mutable {
    if (RealClock().Monotonic() < next) return;
    next = RealClock().Monotonic() + kLogInterval;
    LogInfo(absl::StrFormat("hashing the data, once: %.1f of %.1f GB",
                            static_cast<double>(done) / 1e9, static_cast<double>(total) / 1e9));
  };
}

absl::Status FindModel(v1::ModelSpec& model) {
  if (!model.has_from()) return absl::OkStatus();
  const absl::StatusOr<std::string> found = FindModelFolder(model.from());
  if (!found.ok()) {
    return absl::Status(found.status().code(),
                        absl::StrCat("model.from: ", found.status().message()));
  }
  model.set_from(*found);
  return absl::OkStatus();
}

// What a model has learnt of its ids is worth nothing for those of another tokenizer, which fit all
// the same. By what the two make of a text; a model folder without a tokenizer says nothing.
absl::Status CheckTokenizer(const v1::JobSpec& spec, const Tokenizer& of_data) {
  if (!spec.model().has_from()) return absl::OkStatus();
  const auto of_model = OpenTokenizer(spec.model().from());
  if (!of_model.ok()) return absl::OkStatus();
  constexpr absl::string_view kText = "What is 12 + 345? It's a na\u00efve question, answered.\n";
  std::vector<int32_t> by_data, by_model;
  RETURN_IF_ERROR(of_data.Encode(kText, by_data));
  if (!(*of_model)->Encode(kText, by_model).ok() || by_data == by_model) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "data ", spec.data().path(), " were made with another tokenizer than that of model.from ",
      spec.model().from(), ": a sentence is ", by_data.size(), " ids there and ", by_model.size(),
      " here, or others; prepare the data with --tokenizer ", spec.model().from()));
}

}  // namespace

absl::StatusOr<JobInputs> OpenJobInputs(const v1::JobSpec& given) {
  JobInputs inputs;
  v1::JobSpec spec = given;
  RETURN_IF_ERROR(FindModel(*spec.mutable_model()));
  ASSIGN_OR_RETURN(Dataset dataset,
                   Dataset::Open(spec.data().path(), {.progress = TellOfHashing()}));
  inputs.dataset = std::make_unique<Dataset>(std::move(dataset));
  ASSIGN_OR_RETURN(inputs.task, OpenTask(spec, *inputs.dataset));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(spec.data().path()));
  RETURN_IF_ERROR(CheckTokenizer(spec, *tokenizer));
  ASSIGN_OR_RETURN(inputs.config, JobModelConfig(spec, inputs.dataset->manifest().vocab_size));
  const bool recursive = inputs.config.recursion.has_value();
  if (recursive != (spec.train().task() == v1::TASK_TRM)) {
    return absl::InvalidArgumentError(
        recursive ? "the model is a recursive one (architecture trm), which train.task trm trains; "
                    "set train.task: trm, or take another model"
                  : "train.task trm trains a recursive model and this one is not; give "
                    "model.architecture: trm with model.recursion, or another train.task");
  }
  // What answers end with in data made by this tokenizer ends them in what is written of the model.
  for (const int32_t end :
       spec.model().has_from() ? StopIds({}, *tokenizer) : std::vector{tokenizer->end_of_text()}) {
    auto& ends = inputs.config.eos_token_ids;
    if (!absl::c_linear_search(ends, end)) ends.push_back(end);
  }
  RunIdentity& identity = inputs.identity;
  identity.training_samples = inputs.task->training()->size();
  identity.spec = spec;
  RETURN_IF_ERROR(ResolveEpochs(identity.training_samples, identity.spec));  // has them already
  identity.data_hash = inputs.dataset->manifest_hash();
  identity.tokenizer_json = tokenizer->Json();
  identity.tokenizer_config_json = tokenizer->ConfigJson();
  identity.architecture = ArchitectureJson(inputs.config);
  identity.ends = absl::StrJoin(inputs.config.eos_token_ids, " ");
  ASSIGN_OR_RETURN(const std::optional<LoraConfig> lora, JobLora(inputs.config, spec.train()));
  identity.adapters = AdaptersText(inputs.config, lora);
  return inputs;
}

int64_t MemoryLimitOf(const v1::JobSpec& spec, int64_t of_node) {
  const int64_t job = spec.batch().memory_limit_bytes();
  return job > 0 && of_node > 0 ? std::min(job, of_node) : std::max(job, of_node);
}

absl::Status FitMemory(const v1::JobSpec& spec, const DecoderConfig& config, torch::Device device,
                       const WorkerPlace& place) {
  ASSIGN_OR_RETURN(const Parameters::Options parameters,
                   ParameterOptions(config, spec.train(), device));
  const TrainedModel model{config, spec, parameters, place.ranks};
  const StateBytes state = StateBytesOf(model);
  ASSIGN_OR_RETURN(const MachineMemory machine, ReadMachineMemory());
  const int64_t host = machine.limit_bytes / place.local_ranks;
  if (state.on_host > host) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the exchange of gradients takes %.3g GB of this machine's memory beside the device's, and "
        "there are %.3g for each worker of this job; run fewer workers here, or on a machine with "
        "more memory",
        static_cast<double>(state.on_host) / 1e9, static_cast<double>(host) / 1e9));
  }
  int64_t capacity = place.memory_limit_bytes;
  const auto lower = [&](int64_t bytes) {
    capacity = capacity > 0 ? std::min(capacity, bytes) : bytes;
  };
  if (const std::optional<DeviceMemory> memory = ReadDeviceMemory(device)) {
    lower(memory->total_bytes);
  } else if (!device.is_cuda()) {
    lower(host);
  }
  if (capacity > 0 && state.on_device > capacity) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model does not fit: ", MemoryAdvice(model, capacity)));
  }
  return LimitGpuMemory(device, {.physical_bytes = machine.physical_bytes,
                                 .wanted_bytes = place.memory_limit_bytes,
                                 .beside_bytes = state.outside_allocator,
                                 .sharers = place.local_ranks});
}

}  // namespace espalier
