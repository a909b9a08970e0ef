#include "worker/state/export_folder.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/state/checkpoint.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

constexpr int64_t kTextBytesMax = int64_t{256} << 20;
constexpr size_t kPieceBytes = size_t{4} << 20;

TensorType TypeOf(torch::ScalarType type) {
  if (type == torch::kBFloat16) return TensorType::kBF16;
  return type == torch::kHalf ? TensorType::kF16 : TensorType::kF32;
}

int64_t BytesOf(const ExportedTensor& tensor, torch::ScalarType type) {
  auto bytes = static_cast<int64_t>(torch::elementSize(type));
  for (const int64_t size : tensor.shape) bytes *= size;
  return bytes;
}

// Where files begin and end, of tensors in order.
std::vector<std::pair<size_t, size_t>> Shards(const std::vector<ExportedTensor>& tensors,
                                              torch::ScalarType type, int64_t shard_bytes) {
  std::vector<std::pair<size_t, size_t>> shards;
  int64_t held = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = BytesOf(tensors[i], type);
    if (shards.empty() || held + bytes > shard_bytes) {
      shards.emplace_back(i, i);
      held = 0;
    }
    held += bytes;
    shards.back().second = i + 1;
  }
  return shards;
}

}  // namespace

absl::StatusOr<torch::Tensor> ConvertedValue(const ExportedTensor& tensor, torch::ScalarType type) {
  torch::Tensor value;
  bool finite = true;
  RETURN_IF_ERROR(CatchTorch(absl::StrCat("converting ", tensor.name), [&] {
    const torch::Tensor whole = tensor.value();
    value = whole.to(type).contiguous();
    finite = value.isfinite().all().item<bool>() || !whole.isfinite().all().item<bool>();
  }));
  if (finite) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", tensor.name, " has values beyond the range of ",
                   torch::toString(type), "; export as fp32 or bf16, whose range is larger"));
}

absl::StatusOr<ExportSource> OpenExportSource(const std::string& from) {
  RETURN_IF_ERROR(CheckIfCheckpoint(PosixFileSystem(), from));
  ASSIGN_OR_RETURN(std::string base, BaseFolder(from));
  ASSIGN_OR_RETURN(const torch::ScalarType stored, StoredType(base.empty() ? from : base));
  ASSIGN_OR_RETURN(const std::set<std::string> above, TrainedAboveBase(from));
  const auto trained = [&](const ParameterShape& shape) {
    return shape.is_adapter() || above.count(shape.name) > 0;
  };
  ASSIGN_OR_RETURN(PretrainedModel model,
                   LoadPretrained(from, {.compute_type = stored, .trained = trained}));
  return ExportSource{std::move(base), stored, std::move(model)};
}

absl::StatusOr<std::string> TokenizerFolder(const std::string& base, const std::string& from) {
  if (base.empty()) return from;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(from));
  const bool own = std::find(names.begin(), names.end(), "tokenizer.json") != names.end();
  return own ? from : base;
}

ExportFolder::ExportFolder(ExportFolder&& other) noexcept
    : files_(other.files_),
      output_(std::move(other.output_)),
      folder_(std::exchange(other.folder_, {})),
      bytes_(other.bytes_),
      weight_files_(other.weight_files_) {}

ExportFolder::~ExportFolder() {
  if (!folder_.empty()) files_->Remove(folder_).IgnoreError();
}

absl::StatusOr<ExportFolder> ExportFolder::Begin(FileSystem& files, std::string output) {
  while (output.size() > 1 && output.back() == '/') output.pop_back();  // "out/" is "out"
  if (output.empty()) return absl::InvalidArgumentError("--output is empty; name a new folder");
  const auto there = files.List(output);
  if (!absl::IsNotFound(there.status())) {
    return absl::AlreadyExistsError(
        absl::StrCat(output, " is there already; give --output a folder that is not"));
  }
  ExportFolder folder(files, output);
  RETURN_IF_ERROR(files.Remove(folder.folder_));
  RETURN_IF_ERROR(files.MakeDirectory(folder.folder_));
  return folder;
}

absl::Status ExportFolder::WriteText(absl::string_view name, absl::string_view text) {
  return WriteFileAtomically(*files_, JoinPath(folder_, name), text);
}

absl::Status ExportFolder::CopyText(absl::string_view name,
                                    const std::vector<std::string>& folders) {
  for (const std::string& from : folders) {
    const auto text = files_->Read(JoinPath(from, name), kTextBytesMax);
    if (absl::IsNotFound(text.status())) continue;
    if (!text.ok()) return text.status();
    return WriteText(name, *text);
  }
  return absl::OkStatus();
}

absl::Status ExportFolder::CopyFile(absl::string_view name, const std::string& from) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(JoinPath(from, name)));
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> out,
                   files_->Create(JoinPath(folder_, name)));
  absl::Span<const std::byte> left = file.bytes();
  while (!left.empty()) {
    const absl::Span<const std::byte> piece = left.subspan(0, kPieceBytes);
    RETURN_IF_ERROR(out->Append(piece));
    file.Drop(piece);
    left.remove_prefix(piece.size());
  }
  RETURN_IF_ERROR(out->Sync());
  return out->Close();
}

absl::Status ExportFolder::WriteShard(const std::string& file,
                                      absl::Span<const ExportedTensor> tensors,
                                      torch::ScalarType type) {
  std::vector<TensorSpec> specs;
  for (const ExportedTensor& one : tensors) specs.push_back({one.name, TypeOf(type), one.shape});
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> out,
                   files_->Create(JoinPath(folder_, file)));
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(
                       std::move(specs), {{"format", "pt"}},
                       [&](absl::Span<const std::byte> bytes) { return out->Append(bytes); }));
  for (const ExportedTensor& one : tensors) {
    ASSIGN_OR_RETURN(const torch::Tensor value, ConvertedValue(one, type));
    RETURN_IF_ERROR(
        writer.Append({static_cast<const std::byte*>(value.data_ptr()), value.nbytes()}));
    bytes_ += static_cast<int64_t>(value.nbytes());
  }
  RETURN_IF_ERROR(writer.Finish());
  RETURN_IF_ERROR(out->Sync());
  ++weight_files_;
  return out->Close();
}

absl::Status ExportFolder::WriteTensors(const std::string& name,
                                        const std::vector<ExportedTensor>& tensors,
                                        torch::ScalarType type, int64_t shard_bytes) {
  const auto shards = Shards(tensors, type, shard_bytes);
  if (shards.size() == 1) return WriteShard(name + ".safetensors", tensors, type);
  nlohmann::json of_tensor = nlohmann::json::object();
  const int64_t before = bytes_;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto [begin, end] = shards[i];
    const std::string file =
        absl::StrFormat("%s-%05d-of-%05d.safetensors", name, i + 1, shards.size());
    RETURN_IF_ERROR(
        WriteShard(file, absl::MakeConstSpan(tensors).subspan(begin, end - begin), type));
    for (size_t at = begin; at < end; ++at) of_tensor[tensors[at].name] = file;
  }
  const nlohmann::json index = {{"metadata", {{"total_size", bytes_ - before}}},
                                {"weight_map", of_tensor}};
  return WriteText(name + ".safetensors.index.json", index.dump(2) + "\n");
}

absl::Status ExportFolder::Publish() {
  RETURN_IF_ERROR(files_->SyncDirectory(folder_));
  RETURN_IF_ERROR(files_->Rename(folder_, output_));
  folder_.clear();
  return files_->SyncDirectory(ParentPath(output_));
}

}  // namespace espalier
