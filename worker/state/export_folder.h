// A folder that is being exported: tensors in files of a bounded size, texts, and the files that
// stand beside any model; and what is exported, opened. Used by export_model.cc and export_gguf.cc.
// One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "worker/formats/safetensors.h"
#include "worker/model/pretrained.h"
#include "worker/tensor/torch.h"

namespace espalier {

// A tensor to be written; `value` is called when its turn comes, and gives it on the host.
struct ExportedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::function<torch::Tensor()> value;
};
// Its value in that type. INVALID_ARGUMENT when it is not finite there and was before.
absl::StatusOr<torch::Tensor> ConvertedValue(const ExportedTensor& tensor, torch::ScalarType type);

// What is exported as a whole model: what was trained in fp32, the rest in the type of its files.
struct ExportSource {
  std::string base;  // the model that a checkpoint's adapters or trained parts belong to; or empty
  torch::ScalarType stored_type = torch::kFloat;  // of the base's files
  PretrainedModel model;
};
// `from`: a checkpoint, whose hashes are compared, or any folder in the Hugging Face layout.
absl::StatusOr<ExportSource> OpenExportSource(const std::string& from);

// Whose tokenizer is exported: that of `from` where it has one, since a checkpoint has the one of
// its data, with which it learnt; else the base's, where there is a base. All its files are of that
// folder: an end of text, a chat template or merges of another would go with other ids.
absl::StatusOr<std::string> TokenizerFolder(const std::string& base, const std::string& from);

class ExportFolder {
 public:
  // Beside `output`, under another name. ALREADY_EXISTS when that is there.
  static absl::StatusOr<ExportFolder> Begin(FileSystem& files, std::string output);
  ExportFolder(ExportFolder&& other) noexcept;
  ~ExportFolder();  // removes what was not published

  absl::Status WriteText(absl::string_view name, absl::string_view text);
  // Of the first of `folders` that has the file; fine when none has.
  absl::Status CopyText(absl::string_view name, const std::vector<std::string>& folders);
  // Whatever it holds.
  absl::Status CopyFile(absl::string_view name, const std::string& from);
  // As NAME.safetensors, or as files of at most `shard_bytes` under NAME.safetensors.index.json.
  // INVALID_ARGUMENT when a value is not finite in `type` and was in fp32.
  absl::Status WriteTensors(const std::string& name, const std::vector<ExportedTensor>& tensors,
                            torch::ScalarType type, int64_t shard_bytes);
  // Gives the folder its name.
  absl::Status Publish();

  int64_t bytes() const { return bytes_; }  // of tensors
  int64_t weight_files() const { return weight_files_; }

 private:
  ExportFolder(FileSystem& files, std::string output)
      : files_(&files), output_(std::move(output)), folder_(output_ + ".partial") {}
  absl::Status WriteShard(const std::string& file, absl::Span<const ExportedTensor> tensors,
                          torch::ScalarType type);

  FileSystem* files_;
  std::string output_;
  std::string folder_;  // empty: published, or moved away
  int64_t bytes_ = 0, weight_files_ = 0;
};

}  // namespace espalier
