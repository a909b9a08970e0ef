// WireFields: the fields of a message of Protobuf, one after the other, without its library: that
// of SentencePiece on Debian brings symbols of an older one, and a program that links both crashes.
// Used by sentencepiece_model.cc. One thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class WireFields {
 public:
  struct Field {
    uint64_t number = 0;
    uint64_t integer = 0;     // of a varint, or the bits of a fixed field
    absl::string_view bytes;  // of a text or a message
    bool is_fixed32 = false;

    float real() const {
      const auto bits = static_cast<uint32_t>(integer);
      float value = 0;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    }
  };

  explicit WireFields(absl::string_view message) : rest_(message) {}

  // Nothing at the end; INVALID_ARGUMENT for what is no message.
  absl::StatusOr<std::optional<Field>> Next() {
    if (rest_.empty()) return std::nullopt;
    Field field;
    uint64_t key = 0;
    if (!Varint(key)) return Bad();
    field.number = key >> 3;
    switch (key & 7) {
      case 0:
        if (!Varint(field.integer)) return Bad();
        return field;
      case 1:
        if (!Fixed(8, field.integer)) return Bad();
        return field;
      case 2: {
        uint64_t size = 0;
        if (!Varint(size) || size > rest_.size()) return Bad();
        field.bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return field;
      }
      case 5:
        field.is_fixed32 = true;
        if (!Fixed(4, field.integer)) return Bad();
        return field;
      default:
        return Bad();
    }
  }

 private:
  static absl::Status Bad() {
    return absl::InvalidArgumentError("it is no message of Protobuf, or it is cut");
  }

  bool Varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Fixed(size_t size, uint64_t& value) {
    if (rest_.size() < size) return false;
    for (size_t i = 0; i < size; ++i) {
      value |= uint64_t{static_cast<uint8_t>(rest_[i])} << (8 * i);
    }
    rest_.remove_prefix(size);
    return true;
  }

  absl::string_view rest_;
};

}  // namespace espalier
