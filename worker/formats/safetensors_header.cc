#include "worker/formats/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr size_t kDimensionsMax = 64;
constexpr size_t kNameBytesMax = 1024;  // of a tensor: messages have it

constexpr TensorType kTypes[] = {
    TensorType::kBool, TensorType::kU8,  TensorType::kI8,  TensorType::kF8E4M3, TensorType::kF8E5M2,
    TensorType::kU16,  TensorType::kI16, TensorType::kF16, TensorType::kBF16,   TensorType::kU32,
    TensorType::kI32,  TensorType::kF32, TensorType::kU64, TensorType::kI64,    TensorType::kF64};

std::optional<TensorType> TypeOfName(absl::string_view name) {
  for (TensorType type : kTypes) {
    if (TensorTypeName(type) == name) return type;
  }
  return std::nullopt;
}

// Streams over the JSON text; refuses anything that the format does not have, at once, so that a
// hostile text cannot make it build a structure of its own.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader Take() { return std::move(header_); }
  const std::string& error() const { return error_; }

  bool null() override { return Fail("null is not allowed"); }
  bool boolean(bool) override { return Fail("true and false are not allowed"); }
  bool number_integer(number_integer_t value) override {
    return Fail(absl::StrCat("number ", value, " is negative"));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return Fail("unexpected number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(absl::StrCat("number ", value, " is too large"));
    }
    numbers_.push_back(static_cast<int64_t>(value));
    return numbers_.size() <= kDimensionsMax || Fail("more than 64 dimensions");
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Fail(absl::StrCat("number ", text.substr(0, 40), " is not an integer that fits"));
  }
  bool binary(binary_t&) override { return Fail("binary is not allowed"); }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return Fail("unexpected string");
    const std::optional<TensorType> type = TypeOfName(value);
    if (!type) return Fail(absl::StrCat("unknown dtype '", value.substr(0, 40), "'"));
    entry_.spec.type = *type;
    return true;
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        fields_.clear();
        if (key_ == "__metadata__") {
          place_ = Place::kMetadata;
        } else {
          place_ = Place::kTensor;
          entry_ = HeaderEntry();
          entry_.spec.name = key_;
        }
        return true;
      case Place::kTensor:
      case Place::kMetadata:
      case Place::kShape:
      case Place::kOffsets:
        break;
    }
    return Fail("unexpected object");
  }

  bool key(string_t& key) override {
    key_ = key;
    if (place_ == Place::kTop && key.size() > kNameBytesMax) {
      return Fail(absl::StrCat("a name of ", key.size(), " bytes; at most ", kNameBytesMax,
                               " are allowed"));
    }
    std::set<std::string>& seen = place_ == Place::kTop ? names_ : fields_;
    if (!seen.insert(key).second) return Fail("the key appears twice");
    if (place_ != Place::kTensor) return true;
    return key == "dtype" || key == "shape" || key == "data_offsets" || Fail("unknown key");
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      key_ = entry_.spec.name;
      if (fields_.size() != 3) return Fail("needs dtype, shape and data_offsets");
      header_.entries.push_back(std::move(entry_));
    }
    place_ = Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype") return Fail("unexpected array");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kShape) {
      entry_.spec.shape = numbers_;
    } else {
      if (numbers_.size() != 2) return Fail("data_offsets needs two numbers");
      entry_.begin = numbers_[0];
      entry_.end = numbers_[1];
    }
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return Fail(absl::StrCat("not valid JSON at byte ", position, ": ",
                             std::string(error.what()).substr(0, 200)));
  }

 private:
  enum class Place {
    kStart,     // before the outer object
    kTop,       // inside it, among tensor names
    kMetadata,  // inside "__metadata__"
    kTensor,    // inside the object of one tensor
    kShape,     // inside its shape
    kOffsets,   // inside its data_offsets
  };

  bool Fail(absl::string_view what) {
    std::string where = place_ == Place::kTensor && entry_.spec.name != key_
                            ? absl::StrCat(entry_.spec.name.substr(0, 80), ".", key_.substr(0, 80))
                            : key_.substr(0, 80);
    if (error_.empty()) error_ = absl::StrCat(where.empty() ? "" : absl::StrCat(where, ": "), what);
    return false;
  }

  SafetensorsHeader header_;
  std::string error_;
  Place place_ = Place::kStart;
  std::string key_;
  HeaderEntry entry_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::vector<int64_t> numbers_;
};

}  // namespace

absl::string_view TensorTypeName(TensorType type) {
  switch (type) {
    case TensorType::kBool:
      return "BOOL";
    case TensorType::kU8:
      return "U8";
    case TensorType::kI8:
      return "I8";
    case TensorType::kF8E4M3:
      return "F8_E4M3";
    case TensorType::kF8E5M2:
      return "F8_E5M2";
    case TensorType::kU16:
      return "U16";
    case TensorType::kI16:
      return "I16";
    case TensorType::kF16:
      return "F16";
    case TensorType::kBF16:
      return "BF16";
    case TensorType::kU32:
      return "U32";
    case TensorType::kI32:
      return "I32";
    case TensorType::kF32:
      return "F32";
    case TensorType::kU64:
      return "U64";
    case TensorType::kI64:
      return "I64";
    case TensorType::kF64:
      return "F64";
  }
  return "?";
}

int64_t TensorTypeBytes(TensorType type) {
  switch (type) {
    case TensorType::kBool:
    case TensorType::kU8:
    case TensorType::kI8:
    case TensorType::kF8E4M3:
    case TensorType::kF8E5M2:
      return 1;
    case TensorType::kU16:
    case TensorType::kI16:
    case TensorType::kF16:
    case TensorType::kBF16:
      return 2;
    case TensorType::kU32:
    case TensorType::kI32:
    case TensorType::kF32:
      return 4;
    case TensorType::kU64:
    case TensorType::kI64:
    case TensorType::kF64:
      return 8;
  }
  return 1;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<int64_t> TensorElements(const TensorSpec& spec) {
  // So that the bytes of any type fit 63 bits.
  constexpr int64_t kElementsMax = int64_t{1} << 59;
  int64_t elements = 1;
  for (int64_t dimension : spec.shape) {
    if (dimension < 0 || (dimension > 0 && elements > kElementsMax / dimension)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", spec.name, " has the impossible shape ", ShapeText(spec.shape)));
    }
    elements *= dimension;
  }
  return elements;
}

absl::StatusOr<int64_t> TensorBytes(const TensorSpec& spec) {
  ASSIGN_OR_RETURN(const int64_t elements, TensorElements(spec));
  return elements * TensorTypeBytes(spec.type);
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json) {
  if (json.empty() || json.front() != '{') {
    return absl::InvalidArgumentError("the header does not start with '{'");
  }
  HeaderReader reader;
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  if (!parsed) return absl::InvalidArgumentError(absl::StrCat("header: ", reader.error()));
  return reader.Take();
}

absl::StatusOr<std::string> FormatSafetensorsHeader(const SafetensorsHeader& header) try {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  // ordered_json looks keys up one by one; building its vector directly keeps this linear.
  auto& object = json.get_ref<nlohmann::ordered_json::object_t&>();
  for (const HeaderEntry& entry : header.entries) {
    nlohmann::ordered_json value = nlohmann::ordered_json::object();
    value["dtype"] = std::string(TensorTypeName(entry.spec.type));
    value["shape"] = entry.spec.shape;
    value["data_offsets"] = {entry.begin, entry.end};
    object.emplace_back(entry.spec.name, std::move(value));
  }
  std::string text = json.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
} catch (const nlohmann::json::exception& error) {  // thrown for names that are not UTF-8
  return absl::InvalidArgumentError(absl::StrCat("tensor names and metadata: ", error.what()));
}

}  // namespace espalier
