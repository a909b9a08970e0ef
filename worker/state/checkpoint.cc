#include "worker/state/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"
#include "worker/formats/lora_config.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "espalier-checkpoint";
constexpr int64_t kVersion = 1;
constexpr char kManifestName[] = "manifest.json";
constexpr char kModelName[] = "model.safetensors";
constexpr char kTrainedName[] = "trained.safetensors";
constexpr char kBaseName[] = "base.json";
// The names of the model's file where not all of it is there.
constexpr const char* kPartNames[] = {kTrainedName, kAdapterModelName};
constexpr char kOptimizerName[] = "optimizer.safetensors";
constexpr char kConfigName[] = "config.json";
constexpr char kStateName[] = "trainer_state.json";
constexpr const char* kRequired[] = {kOptimizerName, kConfigName, kStateName};
constexpr int64_t kTextBytesMax = int64_t{256} << 20;

// A file of the checkpoint being written, hashed on its way to the disk.
class HashedFile {
 public:
  static absl::StatusOr<std::unique_ptr<HashedFile>> Create(FileSystem& files,
                                                            const std::string& folder,
                                                            const std::string& name) {
    ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.Create(JoinPath(folder, name)));
    return std::unique_ptr<HashedFile>(new HashedFile(std::move(file), name));
  }

  absl::Status Append(absl::Span<const std::byte> bytes) {
    hash_.Update(bytes);
    result_.bytes += static_cast<int64_t>(bytes.size());
    return file_->Append(bytes);
  }

  absl::StatusOr<CheckpointFile> Finish() {
    RETURN_IF_ERROR(file_->Sync());
    RETURN_IF_ERROR(file_->Close());
    result_.sha256 = hash_.Finish();
    return result_;
  }

 private:
  HashedFile(std::unique_ptr<WritableFile> file, const std::string& name)
      : file_(std::move(file)), result_{.name = name} {}
  std::unique_ptr<WritableFile> file_;
  Sha256 hash_;
  CheckpointFile result_;
};

absl::StatusOr<CheckpointFile> WriteText(FileSystem& files, const std::string& folder,
                                         const std::string& name, absl::string_view text) {
  ASSIGN_OR_RETURN(const std::unique_ptr<HashedFile> file, HashedFile::Create(files, folder, name));
  RETURN_IF_ERROR(file->Append(AsBytes(absl::MakeConstSpan(text.data(), text.size()))));
  return file->Finish();
}

absl::StatusOr<CheckpointFile> WriteTensors(FileSystem& files, const std::string& folder,
                                            const std::string& name,
                                            const std::vector<NamedTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const NamedTensor& tensor : tensors) {
    specs.push_back(tensor.spec);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<HashedFile> file, HashedFile::Create(files, folder, name));
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(
                       std::move(specs), {{"format", "pt"}},
                       [&](absl::Span<const std::byte> bytes) { return file->Append(bytes); }));
  for (const NamedTensor& tensor : tensors) {
    ASSIGN_OR_RETURN(const int64_t wanted, TensorBytes(tensor.spec));
    ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes, tensor.read());
    if (wanted != static_cast<int64_t>(bytes.size())) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.spec.name, " has ",
                                                     bytes.size(), " bytes, its shape ", wanted));
    }
    RETURN_IF_ERROR(writer.Append(bytes));
  }
  RETURN_IF_ERROR(writer.Finish());
  return file->Finish();
}

const char* ModelNameOf(const CheckpointContent& content) {
  if (content.base_json.empty()) return kModelName;
  return content.adapter_config_json.empty() ? kTrainedName : kAdapterModelName;
}

// The part that is there, if any is.
const char* ModelNameOf(const CheckpointManifest& manifest) {
  for (const char* part : kPartNames) {
    if (!manifest.Lists(kModelName) && manifest.Lists(part)) return part;
  }
  return kModelName;
}

absl::Status Damaged(const std::string& folder, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("checkpoint ", folder, " is damaged: ", what));
}

absl::StatusOr<CheckpointFile> FileFromJson(const json& entry) {
  if (!entry.is_object()) return absl::InvalidArgumentError("a file is not an object");
  CheckpointFile file;
  ASSIGN_OR_RETURN(file.name, StringField(entry, "name"));
  RETURN_IF_ERROR(CheckPlainFileName(file.name));
  ASSIGN_OR_RETURN(file.bytes, IntegerField(entry, "bytes"));
  ASSIGN_OR_RETURN(file.sha256, StringField(entry, "sha256"));
  RETURN_IF_ERROR(CheckSha256Text(file.sha256));
  return file;
}

absl::Status CheckFile(const std::string& folder, const CheckpointFile& file, CheckpointCheck check,
                       const std::function<bool()>& cancelled) {
  const std::string path = JoinPath(folder, file.name);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return Damaged(folder, absl::StrCat(file.name, ": ", error.message()));
  if (size != static_cast<uint64_t>(file.bytes)) {
    return Damaged(
        folder, absl::StrCat(file.name, " has ", size, " bytes, the manifest says ", file.bytes));
  }
  if (check == CheckpointCheck::kSizes) return absl::OkStatus();
  ASSIGN_OR_RETURN(const FileDigest digest, Sha256OfFile(path, /*progress=*/{}, cancelled));
  if (digest.sha256 == file.sha256) return absl::OkStatus();
  return Damaged(folder, absl::StrCat("the SHA-256 of ", file.name, " is ", digest.sha256,
                                      ", the manifest says ", file.sha256));
}

}  // namespace

std::string CheckpointManifestToJson(const CheckpointManifest& manifest) {
  json value;
  value["format"] = kFormat;
  value["version"] = kVersion;
  value["step"] = manifest.step.value();
  if (manifest.validation_loss) value["validation_loss"] = *manifest.validation_loss;
  value["files"] = json::array();
  for (const CheckpointFile& file : manifest.files) {
    value["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  // Over the compact text of all other fields, keys sorted.
  value["sha256"] = Sha256Hex(value.dump());
  return value.dump(2) + "\n";
}

absl::Status ReplaceCheckpointManifest(FileSystem& files, const std::string& folder,
                                       const CheckpointManifest& manifest) {
  return WriteFileAtomically(files, JoinPath(folder, kManifestName),
                             CheckpointManifestToJson(manifest));
}

absl::StatusOr<CheckpointManifest> CheckpointManifestFromJson(absl::string_view text) {
  ASSIGN_OR_RETURN(json value, ParseJsonObject(text));
  ASSIGN_OR_RETURN(const std::string format, StringField(value, "format"));
  ASSIGN_OR_RETURN(const int64_t version, IntegerField(value, "version"));
  if (format != kFormat || version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("it is '", format.substr(0, 40), "' version ",
                                                   version, "; this program reads '", kFormat,
                                                   "' version ", kVersion));
  }
  ASSIGN_OR_RETURN(const std::string own_hash, StringField(value, "sha256"));
  value.erase("sha256");
  if (Sha256Hex(value.dump(-1, ' ', false, json::error_handler_t::replace)) != own_hash) {
    return absl::InvalidArgumentError("its own 'sha256' does not match its fields");
  }
  CheckpointManifest manifest;
  ASSIGN_OR_RETURN(const int64_t step, IntegerField(value, "step"));
  manifest.step = Step(step);
  if (const auto loss = value.find("validation_loss"); loss != value.end() && loss->is_number()) {
    manifest.validation_loss = loss->get<double>();
  }
  ASSIGN_OR_RETURN(const json* files, ArrayField(value, "files"));
  for (const json& entry : *files) {
    ASSIGN_OR_RETURN(CheckpointFile file, FileFromJson(entry));
    manifest.files.push_back(std::move(file));
  }
  return manifest;
}

bool CheckpointManifest::Lists(absl::string_view name) const {
  return std::any_of(files.begin(), files.end(),
                     [name](const CheckpointFile& file) { return file.name == name; });
}

absl::Status WriteCheckpointFiles(FileSystem& files, const std::string& folder,
                                  const CheckpointContent& content) {
  if (content.model.empty()) {
    return absl::InvalidArgumentError("a checkpoint needs at least one tensor of the model");
  }
  RETURN_IF_ERROR(files.MakeDirectory(folder));
  CheckpointManifest manifest{.step = content.step};
  // JSON has no infinity or NaN; such a loss is never among the best.
  if (content.validation_loss && std::isfinite(*content.validation_loss)) {
    manifest.validation_loss = content.validation_loss;
  }
  ASSIGN_OR_RETURN(CheckpointFile model,
                   WriteTensors(files, folder, ModelNameOf(content), content.model));
  manifest.files.push_back(std::move(model));
  ASSIGN_OR_RETURN(CheckpointFile optimizer,
                   WriteTensors(files, folder, kOptimizerName, content.optimizer));
  manifest.files.push_back(std::move(optimizer));
  const std::pair<const char*, const std::string&> texts[] = {
      {kConfigName, content.config_json},
      {kStateName, content.trainer_state_json},
      {kBaseName, content.base_json},
      {kAdapterConfigName, content.adapter_config_json},
      {"tokenizer.json", content.tokenizer_json},
      {"tokenizer_config.json", content.tokenizer_config_json},
      {"generation_config.json", content.generation_config_json}};
  for (const auto& [name, text] : texts) {
    const bool required = std::find(std::begin(kRequired), std::end(kRequired),
                                    absl::string_view(name)) != std::end(kRequired);
    if (text.empty() && !required) continue;
    ASSIGN_OR_RETURN(CheckpointFile file, WriteText(files, folder, name, text));
    manifest.files.push_back(std::move(file));
  }
  RETURN_IF_ERROR(
      WriteText(files, folder, kManifestName, CheckpointManifestToJson(manifest)).status());
  return files.SyncDirectory(folder);
}

absl::StatusOr<CheckpointManifest> CheckCheckpoint(FileSystem& files, const std::string& folder,
                                                   CheckpointCheck check,
                                                   const std::function<bool()>& cancelled) {
  const absl::StatusOr<std::string> text =
      files.Read(JoinPath(folder, kManifestName), kTextBytesMax);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat(folder, " is not a checkpoint: it has no ", kManifestName));
  }
  if (!text.ok()) return text.status();
  absl::StatusOr<CheckpointManifest> manifest = CheckpointManifestFromJson(*text);
  if (!manifest.ok()) {
    return Damaged(folder, absl::StrCat(kManifestName, ": ", manifest.status().message()));
  }
  for (const char* required : kRequired) {
    if (manifest->Lists(required)) continue;
    return Damaged(folder, absl::StrCat("the manifest does not list ", required));
  }
  const absl::string_view model = ModelNameOf(*manifest);
  if (!manifest->Lists(model) || (model != kModelName && !manifest->Lists(kBaseName))) {
    return Damaged(folder, absl::StrCat("the manifest lists neither ", kModelName, " nor ",
                                        absl::StrJoin(kPartNames, " or "), " with ", kBaseName));
  }
  for (const CheckpointFile& file : manifest->files) {
    RETURN_IF_ERROR(CheckFile(folder, file, check, cancelled));
  }
  return manifest;
}

absl::Status CheckIfCheckpoint(FileSystem& files, const std::string& folder) {
  const auto manifest = CheckCheckpoint(files, folder, CheckpointCheck::kHashes);
  return absl::IsNotFound(manifest.status()) ? absl::OkStatus() : manifest.status();
}

absl::StatusOr<Checkpoint> Checkpoint::Open(FileSystem& files, const std::string& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  checkpoint.files_ = &files;
  ASSIGN_OR_RETURN(checkpoint.manifest_, CheckCheckpoint(files, folder, CheckpointCheck::kHashes));
  ASSIGN_OR_RETURN(checkpoint.model_,
                   Safetensors::Open(JoinPath(folder, ModelNameOf(checkpoint.manifest_))));
  ASSIGN_OR_RETURN(checkpoint.optimizer_, Safetensors::Open(JoinPath(folder, kOptimizerName)));
  return checkpoint;
}

absl::StatusOr<std::string> Checkpoint::Text(absl::string_view file_name) const {
  for (const CheckpointFile& file : manifest_.files) {
    if (file.name == file_name) return files_->Read(JoinPath(folder_, file_name), kTextBytesMax);
  }
  return absl::NotFoundError(absl::StrCat("checkpoint ", folder_, " has no ", file_name));
}

absl::Status LoadTensor(const Safetensors& file, const TensorSpec& spec,
                        absl::Span<std::byte> out) {
  ASSIGN_OR_RETURN(const TensorView view, file.Get(spec));
  if (view.bytes.size() != out.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", spec.name, " has ", view.bytes.size(),
                                                   " bytes, ", out.size(), " are wanted"));
  }
  std::byte* to = out.data();
  return file.Stream(view, [&to](absl::Span<const std::byte> piece) {
    to = std::copy(piece.begin(), piece.end(), to);
    return absl::OkStatus();
  });
}

}  // namespace espalier
