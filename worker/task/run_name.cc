#include "worker/task/run_name.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/file_system.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/config/yaml_reader.h"
#include "worker/formats/safetensors.h"
#include "worker/model/pretrained.h"
#include "worker/rollout/rollout_bytes.h"

namespace espalier {
namespace {

constexpr int64_t kJsonBytesMax = int64_t{64} << 20;
// Of each tensor; one that is not larger than all of them is read whole.
constexpr size_t kPieces = 16, kPieceBytes = 4096;

class NameHash {
 public:
  void Add(absl::string_view text) {
    Update(absl::StrCat(text.size(), ":"));
    Update(text);
  }
  void Add(absl::Span<const std::byte> bytes) {
    Add(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  std::string Finish() { return hash_.Finish(); }

 private:
  void Update(absl::string_view text) {
    hash_.Update({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  }
  Sha256 hash_;
};

std::string LastPart(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path;
  return std::filesystem::path(path.substr(0, end + 1)).filename().string();
}

// A folder may hold its weights twice, and other things of that type.
bool HoldsWeights(const std::string& name, bool in_one) {
  if (name == "trained.safetensors" || name == "adapter_model.safetensors") return true;
  if (in_one) return name == "model.safetensors";
  return absl::StrContains(name, "-of-") && absl::EndsWith(name, ".safetensors");
}

void AddTensor(const TensorView& tensor, NameHash& name) {
  name.Add(absl::StrCat(tensor.spec.name, " ", static_cast<int>(tensor.spec.type)));
  for (const int64_t size : tensor.spec.shape) name.Add(absl::StrCat(size));
  const size_t bytes = tensor.bytes.size();
  if (bytes <= kPieces * kPieceBytes) return name.Add(tensor.bytes);
  for (size_t piece = 0; piece < kPieces; ++piece) {
    const size_t begin = (bytes - kPieceBytes) / (kPieces - 1) * piece;
    name.Add(tensor.bytes.subspan(begin, kPieceBytes));
  }
}

absl::Status AddWeights(const std::string& folder, const std::vector<std::string>& names,
                        NameHash& name) {
  const bool in_one = std::find(names.begin(), names.end(), "model.safetensors") != names.end();
  std::vector<Safetensors> files;
  for (const std::string& file : names) {
    if (!HoldsWeights(file, in_one)) continue;
    ASSIGN_OR_RETURN(Safetensors opened, Safetensors::Open(JoinPath(folder, file)));
    files.push_back(std::move(opened));
  }
  std::vector<const TensorView*> tensors;
  for (const Safetensors& file : files) {
    for (const TensorView& tensor : file.tensors()) tensors.push_back(&tensor);
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorView* a, const TensorView* b) {
    return a->spec.name < b->spec.name;
  });
  for (const TensorView* tensor : tensors) AddTensor(*tensor, name);
  return absl::OkStatus();
}

absl::Status AddFolder(const std::string& folder, NameHash& name) {
  FileSystem& files = PosixFileSystem();
  ASSIGN_OR_RETURN(std::vector<std::string> names, files.List(folder));
  std::sort(names.begin(), names.end());
  for (const char* file : {"adapter_config.json", "config.json", "generation_config.json"}) {
    if (std::find(names.begin(), names.end(), file) == names.end()) continue;
    ASSIGN_OR_RETURN(const std::string text, files.Read(JoinPath(folder, file), kJsonBytesMax));
    nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) {  // paths of where it was made
      json.erase("_name_or_path");
      json.erase("base_model_name_or_path");
    }
    name.Add(file);
    name.Add(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return AddWeights(folder, names, name);
}

// What a person chose. What a field that is newer than the run stands for is what there was before.
template <typename Spec>
std::string TextOf(Spec spec) {
  ClearDefaultValues(spec);
  return spec.SerializeAsString();
}

// How many at a time are made, or judged, changes nothing; nor does how long one may take, which a
// run that failed for that is started again with more of.
v1::RolloutSpec RolloutOf(const v1::JobSpec& spec) {
  v1::RolloutSpec rollout = spec.train().rollout();
  rollout.clear_rows();
  return rollout;
}

v1::VerifierSpec VerifierOf(const v1::JobSpec& spec) {
  v1::VerifierSpec verifier = spec.train().verifier();
  verifier.set_folder("");  // by default that of the job file
  if (verifier.command_size() > 0) verifier.set_command(0, LastPart(verifier.command(0)));
  verifier.set_words(LastPart(verifier.words()));
  verifier.set_secrets(LastPart(verifier.secrets()));
  verifier.clear_processes();
  verifier.clear_in_flight();
  verifier.clear_time_limit_seconds();
  verifier.clear_start_limit_seconds();
  return verifier;
}

}  // namespace

absl::StatusOr<std::string> ModelContent(const v1::JobSpec& spec) {
  const std::string& model = spec.model().from();
  const std::string& adapters = spec.train().lora().from();
  if (model.empty() && adapters.empty()) return std::string();
  NameHash name;
  if (!model.empty()) {
    ASSIGN_OR_RETURN(const std::string base, BaseFolder(model));
    RETURN_IF_ERROR(AddFolder(model, name));
    if (!base.empty()) RETURN_IF_ERROR(AddFolder(base, name));
  }
  if (!adapters.empty()) RETURN_IF_ERROR(AddFolder(adapters, name));
  return name.Finish();
}

absl::StatusOr<std::string> SharedModelContent(const RankContext& context,
                                               const v1::JobSpec& spec) {
  absl::StatusOr<std::string> mine = std::string();
  RETURN_IF_ERROR(RunTogether(context, [&] {
    mine = ModelContent(spec);
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(const SharedOutcome outcome, ShareStatus(context.collective, mine.status()));
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   GatherBytes(context.collective, mine.value_or("")));
  const auto told =
      std::find_if(all.begin(), all.end(), [](const std::string& one) { return !one.empty(); });
  if (told != all.end()) return *told;
  RETURN_IF_ERROR(outcome.status);
  return std::string();
}

std::string RunName(const v1::JobSpec& spec, absl::string_view data_hash,
                    absl::string_view content) {
  v1::ModelSpec model = spec.model();
  model.set_from(LastPart(model.from()));
  NameHash name;
  name.Add(data_hash);
  name.Add(TextOf(RolloutOf(spec)));
  name.Add(TextOf(VerifierOf(spec)));
  name.Add(TextOf(model));
  name.Add(LastPart(spec.train().lora().from()));
  name.Add(absl::StrCat(spec.train().seed(), " ", spec.train().precision(), " ",
                        spec.evaluate().max_prompts()));
  if (!content.empty()) name.Add(content);
  return name.Finish();
}

std::string TestName(const v1::JobSpec& spec, absl::string_view data_hash,
                     absl::string_view learns_from) {
  v1::TrainSpec train = spec.train();
  if (train.has_lora()) train.mutable_lora()->clear_from();
  train.clear_rollout();  // these are in the name of the run
  train.clear_verifier();
  NameHash name;
  name.Add(RunName(spec, data_hash));
  v1::DataSpec data = spec.data();
  data.clear_path();  // its hash is there
  v1::ParallelSpec parallel;
  if (spec.parallel().has_gradient_dtype()) {
    parallel.set_gradient_dtype(spec.parallel().gradient_dtype());
  }
  name.Add(TextOf(train));
  name.Add(TextOf(data));
  name.Add(TextOf(spec.evaluate()));  // a plateau lowers the learning rate
  name.Add(TextOf(parallel));
  name.Add(learns_from);
  return name.Finish();
}

}  // namespace espalier
