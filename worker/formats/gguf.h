// Gguf: the streaming writer of llama.cpp's model files, version 3 (README.md has the layout):
// facts by name, then tensors, each at a multiple of 32 bytes. Used by worker/tokenizer (facts) and
// worker/state. A writer belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace espalier {

// By the number that the file has for it.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ8_0 = 8,  // blocks of 32 elements of a row: a scale as F16 and 32 signed bytes
  kBF16 = 30,
};
inline constexpr int64_t kQ8BlockElements = 32;
inline constexpr int64_t kQ8BlockBytes = 34;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape;  // row-major, 1 to 4 dimensions; the file lists them the other way
};
// INVALID_ARGUMENT names a tensor with other dimensions, or whose rows are no whole blocks.
absl::StatusOr<int64_t> GgufBytes(const GgufTensor& tensor);

using GgufValue = std::variant<bool, uint32_t, float, std::string, std::vector<int32_t>,
                               std::vector<float>, std::vector<std::string>>;
// "general.architecture" and so on, in the order of the file.
using GgufFacts = std::vector<std::pair<std::string, GgufValue>>;
// Out of line, where GCC 12 sees no fault in it.
void AddFact(GgufFacts& facts, std::string name, GgufValue value);

// Writes a file tensor by tensor, holding none of them.
class GgufWriter {
 public:
  // Receives the bytes of the file in order; a failure ends the writing and is passed on.
  using Sink = std::function<absl::Status(absl::Span<const std::byte>)>;
  // Writes all that comes before the tensors. INVALID_ARGUMENT for a name that is empty, given
  // twice, or longer than llama.cpp reads (a tensor's has at most 63 bytes).
  static absl::StatusOr<GgufWriter> Create(const GgufFacts& facts, std::vector<GgufTensor> tensors,
                                           Sink sink);
  // All bytes of the next tensor. OUT_OF_RANGE for more or fewer than it has, and behind the last.
  absl::Status Append(absl::Span<const std::byte> bytes);
  // FAILED_PRECONDITION when a tensor is missing.
  absl::Status Finish() const;

 private:
  GgufWriter(std::vector<GgufTensor> tensors, Sink sink)
      : tensors_(std::move(tensors)), sink_(std::move(sink)) {}

  std::vector<GgufTensor> tensors_;
  Sink sink_;
  size_t written_ = 0;  // tensors
};

}  // namespace espalier
