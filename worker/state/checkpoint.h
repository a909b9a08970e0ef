// Checkpoint: the training state in one folder that transformers can load, written and verified.
// Used by checkpoint_store.h, worker/rehearse_verb.cc, worker/open_model.cc, the trainer and
// generation. A Checkpoint is immutable once open: any thread. Nothing here knows LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/file_system.h"
#include "common/base/ids.h"
#include "worker/formats/safetensors.h"

namespace espalier {

// A tensor to be written. `read` is called once, when its turn comes, and gives its bytes, which
// stay valid until the next tensor's are asked for: so that what is on a device is on the host one
// tensor at a time.
struct NamedTensor {
  TensorSpec spec;
  std::function<absl::StatusOr<absl::Span<const std::byte>>()> read;
};

struct CheckpointContent {
  Step step;  // committed steps: the number of the next one
  // What is trained, fp32, Hugging Face names: model.safetensors; trained.safetensors where
  // something is frozen, so that nobody takes a part for the model; of adapters, by PEFT's names,
  // adapter_model.safetensors.
  std::vector<NamedTensor> model;
  // base.json, of a model of which something is frozen: where that is. Empty: all is trained.
  std::string base_json;
  std::string adapter_config_json;     // adapter_config.json, of adapters
  std::vector<NamedTensor> optimizer;  // optimizer.safetensors
  std::string config_json;             // config.json
  std::string tokenizer_json;          // tokenizer.json and so on; empty: no such file
  std::string tokenizer_config_json;
  std::string generation_config_json;
  std::string trainer_state_json;  // schedule, seeds, order position, spec: the trainer's affair
  std::optional<double> validation_loss;  // nats per token, for keep_best
};

struct CheckpointFile {
  std::string name;
  int64_t bytes = 0;
  std::string sha256;
};
struct CheckpointManifest {
  Step step;
  std::optional<double> validation_loss;
  std::vector<CheckpointFile> files;

  bool Lists(absl::string_view name) const;
};
std::string CheckpointManifestToJson(const CheckpointManifest& manifest);
absl::StatusOr<CheckpointManifest> CheckpointManifestFromJson(absl::string_view json);

// Of a checkpoint whose files stay as they are; at every instant it is the old or the new one.
absl::Status ReplaceCheckpointManifest(FileSystem& files, const std::string& folder,
                                       const CheckpointManifest& manifest);

// Writes every file of the content and manifest.json into `folder` (made if missing), each synced,
// then the folder. INVALID_ARGUMENT when sizes and shapes disagree or values of the model are
// missing; RESOURCE_EXHAUSTED when the disk is full. Publishes nothing: see CheckpointStore.
absl::Status WriteCheckpointFiles(FileSystem& files, const std::string& folder,
                                  const CheckpointContent& content);

// How much is read to trust a folder.
enum class CheckpointCheck {
  kSizes,   // manifest and file sizes
  kHashes,  // and every SHA-256
};
// DATA_LOSS names the folder, the file and what is wrong; NOT_FOUND: no manifest there. CANCELLED
// once `cancelled` (may be empty), which is asked before every MiB that is hashed, says so.
absl::StatusOr<CheckpointManifest> CheckCheckpoint(FileSystem& files, const std::string& folder,
                                                   CheckpointCheck check,
                                                   const std::function<bool()>& cancelled = {});

// The same by every hash for a folder that is to be read as a model: OK when there is no manifest,
// since it is not a checkpoint of ours then.
absl::Status CheckIfCheckpoint(FileSystem& files, const std::string& folder);

class Checkpoint {
 public:
  // Verifies hashes and opens.
  static absl::StatusOr<Checkpoint> Open(FileSystem& files, const std::string& folder);

  Step step() const { return manifest_.step; }
  const CheckpointManifest& manifest() const { return manifest_; }
  const std::string& folder() const { return folder_; }
  const Safetensors& model() const { return model_; }
  const Safetensors& optimizer() const { return optimizer_; }
  // Text of config.json, trainer_state.json and so on; NOT_FOUND.
  absl::StatusOr<std::string> Text(absl::string_view file_name) const;

 private:
  std::string folder_;
  CheckpointManifest manifest_;
  Safetensors model_;
  Safetensors optimizer_;
  FileSystem* files_ = nullptr;
};

// Copies the tensor into `out`. NOT_FOUND, or INVALID_ARGUMENT when type, shape or bytes differ.
absl::Status LoadTensor(const Safetensors& file, const TensorSpec& spec, absl::Span<std::byte> out);

}  // namespace espalier
