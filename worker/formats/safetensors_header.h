// The JSON header of a safetensors file, as text and as entries. Used by safetensors.cc only.
// Pure functions: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/formats/safetensors.h"

namespace espalier {

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
