// Safetensors: the reader and the streaming writer of the weight format of Hugging Face
// (8 bytes of header length, little endian; JSON header; tensors back to back).
// Used by worker/model (weights), worker/state (checkpoints), worker/task/run_name.cc. A file
// once opened is immutable: any thread. A writer belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/file_system.h"
#include "worker/formats/safetensors_header.h"

namespace espalier {

struct TensorView {
  TensorSpec spec;
  // Row-major, little endian; no alignment is promised (copy, or check, before casting).
  absl::Span<const std::byte> bytes;
};

// The tensors of a file. The header may be hostile: everything in it is checked against the size of
// the data, tensors must cover the data exactly (no gap, no overlap), and memory use is bounded by
// the size of the header, which is at most 100 MB.
class Safetensors {
 public:
  // Maps the file. INVALID_ARGUMENT names the path, the tensor and what is wrong; a file that is
  // shorter or longer than its header says is DATA_LOSS.
  static absl::StatusOr<Safetensors> Open(const std::string& path);
  // The same over bytes that outlive the result; `name` stands for the path in messages.
  static absl::StatusOr<Safetensors> Parse(absl::Span<const std::byte> bytes,
                                           absl::string_view name);

  // In the order of the data.
  absl::Span<const TensorView> tensors() const { return tensors_; }
  // Null when there is no such tensor.
  const TensorView* Find(absl::string_view name) const;
  // NOT_FOUND, or INVALID_ARGUMENT when type or shape differ from `want`; both name the tensor.
  absl::StatusOr<TensorView> Get(const TensorSpec& want) const;
  // Hands the tensor's bytes to `body`, in order and in pieces of whole elements, and lets go of
  // the memory of each piece after it: a file is read in a few megabytes, whatever its size.
  absl::Status Stream(
      const TensorView& tensor,
      const std::function<absl::Status(absl::Span<const std::byte> piece)>& body) const;
  // "__metadata__" of the header.
  const StringMap& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  std::string name_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  StringMap metadata_;
};

// Writes a file tensor by tensor, holding none of them.
class SafetensorsWriter {
 public:
  // Receives the bytes of the file in order; a failure ends the writing and is passed on.
  using Sink = std::function<absl::Status(absl::Span<const std::byte>)>;
  // Writes the header. INVALID_ARGUMENT for a duplicate, empty or reserved name and bad shapes.
  // transformers wants metadata {"format": "pt"}.
  static absl::StatusOr<SafetensorsWriter> Create(std::vector<TensorSpec> tensors,
                                                  const StringMap& metadata, Sink sink);
  // The next bytes of the current tensor; a tensor may come in pieces, but no piece may reach into
  // the next one: OUT_OF_RANGE.
  absl::Status Append(absl::Span<const std::byte> bytes);
  // FAILED_PRECONDITION when bytes are missing.
  absl::Status Finish() const;

 private:
  SafetensorsWriter(std::vector<TensorSpec> tensors, Sink sink)
      : tensors_(std::move(tensors)), sink_(std::move(sink)) {}
  void SkipFullTensors();

  std::vector<TensorSpec> tensors_;
  Sink sink_;
  size_t current_ = 0;   // tensor that is being written
  int64_t written_ = 0;  // bytes of it so far
};

template <typename T>
absl::Span<const std::byte> AsBytes(absl::Span<const T> values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace espalier
