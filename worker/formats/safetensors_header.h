// What the header of a safetensors file says: types and shapes of tensors, where their bytes lie;
// as JSON text and as entries. Used by safetensors.h and whoever names a tensor. Pure functions and
// plain data: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

enum class TensorType {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64
};
// As in the header: "F32", "BF16", "F8_E4M3".
absl::string_view TensorTypeName(TensorType type);
int64_t TensorTypeBytes(TensorType type);

struct TensorSpec {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;  // empty: a scalar
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};
// "[2, 3]".
std::string ShapeText(const std::vector<int64_t>& shape);
// Elements and bytes of a tensor; INVALID_ARGUMENT for a negative dimension or an overflow.
absl::StatusOr<int64_t> TensorElements(const TensorSpec& spec);
absl::StatusOr<int64_t> TensorBytes(const TensorSpec& spec);

using StringMap = std::map<std::string, std::string>;

struct HeaderEntry {
  TensorSpec spec;
  int64_t begin = 0;  // bytes from the start of the data
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;  // in the order of the text
  StringMap metadata;
};

// Accepts exactly the structure of the format: no other key, no repeated key, no deeper nesting, no
// number that is not an integer in [0, 2^63). Does not look at offsets. INVALID_ARGUMENT says where
// it stopped.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json);

// The inverse, padded with spaces to a multiple of 8 bytes. INVALID_ARGUMENT for text that is not
// UTF-8.
absl::StatusOr<std::string> FormatSafetensorsHeader(const SafetensorsHeader& header);

}  // namespace espalier
