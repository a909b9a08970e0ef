#include "worker/formats/gguf.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <set>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/formats/safetensors_header.h"

namespace espalier {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

constexpr uint32_t kVersion = 3;
constexpr int64_t kAlignment = 32;  // what readers take without "general.alignment"
constexpr size_t kDimensionsMax = 4;
constexpr size_t kTensorNameMax = 63, kFactNameMax = 65535;

// Of a value, as the format numbers them.
enum class ValueType : uint32_t {
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9
};

template <typename T>
constexpr ValueType TypeOf() {
  if constexpr (std::is_same_v<T, bool>) return ValueType::kBool;
  if constexpr (std::is_same_v<T, uint32_t>) return ValueType::kUint32;
  if constexpr (std::is_same_v<T, int32_t>) return ValueType::kInt32;
  if constexpr (std::is_same_v<T, float>) return ValueType::kFloat32;
  if constexpr (std::is_same_v<T, std::string>) return ValueType::kString;
  return ValueType::kArray;
}

// What comes before the tensors, as bytes.
class Head {
 public:
  template <typename T>
  void Put(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      text_.push_back(value ? 1 : 0);
    } else {
      static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
      text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  }
  void Put(const std::string& text) {
    Put(uint64_t{text.size()});
    text_.append(text);
  }
  template <typename T>
  void Put(const std::vector<T>& values) {
    Put(TypeOf<T>());
    Put(uint64_t{values.size()});
    for (const T& value : values) Put(value);
  }
  void PutFact(const std::string& name, const GgufValue& value) {
    Put(name);
    std::visit(
        [this](const auto& held) {
          Put(TypeOf<std::decay_t<decltype(held)>>());
          Put(held);
        },
        value);
  }
  void Pad() { text_.append((kAlignment - text_.size() % kAlignment) % kAlignment, '\0'); }
  absl::Span<const std::byte> bytes() const {
    return {reinterpret_cast<const std::byte*>(text_.data()), text_.size()};
  }

 private:
  std::string text_;
};

int64_t Padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t ElementBytes(GgufType type) { return type == GgufType::kF32 ? 4 : 2; }

absl::Status CheckName(std::set<std::string>& seen, const std::string& name, size_t longest) {
  if (!name.empty() && name.size() <= longest && seen.insert(name).second) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the name '", name.substr(0, 80),
                                                 "' in a GGUF file is empty, longer than ", longest,
                                                 " bytes or given twice"));
}

}  // namespace

void AddFact(GgufFacts& facts, std::string name, GgufValue value) {
  facts.emplace_back(std::move(name), std::move(value));
}

absl::StatusOr<int64_t> GgufBytes(const GgufTensor& tensor) {
  if (tensor.shape.empty() || tensor.shape.size() > kDimensionsMax ||
      *std::min_element(tensor.shape.begin(), tensor.shape.end()) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, " has the shape ", ShapeText(tensor.shape),
                     "; a GGUF file holds 1 to 4 dimensions of at least 1"));
  }
  ASSIGN_OR_RETURN(const int64_t elements,
                   TensorElements({tensor.name, TensorType::kF32, tensor.shape}));
  if (tensor.type != GgufType::kQ8_0) {
    if (elements <= std::numeric_limits<int64_t>::max() / 8) {
      return elements * ElementBytes(tensor.type);
    }
    return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " exceeds 2^63 bytes"));
  }
  if (tensor.shape.back() % kQ8BlockElements == 0) {
    return elements / kQ8BlockElements * kQ8BlockBytes;
  }
  return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " has rows of ",
                                                 tensor.shape.back(), " elements; Q8_0 takes ",
                                                 "multiples of ", kQ8BlockElements));
}

absl::StatusOr<GgufWriter> GgufWriter::Create(const GgufFacts& facts,
                                              std::vector<GgufTensor> tensors, Sink sink) {
  Head head;
  for (const char letter : {'G', 'G', 'U', 'F'}) head.Put(letter);
  head.Put(kVersion);
  head.Put(uint64_t{tensors.size()});
  head.Put(uint64_t{facts.size()});
  std::set<std::string> names;
  for (const auto& [name, value] : facts) {
    RETURN_IF_ERROR(CheckName(names, name, kFactNameMax));
    head.PutFact(name, value);
  }
  names.clear();
  int64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    RETURN_IF_ERROR(CheckName(names, tensor.name, kTensorNameMax));
    ASSIGN_OR_RETURN(const int64_t bytes, GgufBytes(tensor));
    head.Put(tensor.name);
    head.Put(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) head.Put(static_cast<uint64_t>(tensor.shape[i]));
    head.Put(tensor.type);
    head.Put(static_cast<uint64_t>(offset));
    if (bytes > std::numeric_limits<int64_t>::max() - offset - kAlignment) {
      return absl::InvalidArgumentError("the tensors together exceed 2^63 bytes");
    }
    offset += Padded(bytes);
  }
  head.Pad();
  RETURN_IF_ERROR(sink(head.bytes()));
  return GgufWriter(std::move(tensors), std::move(sink));
}

absl::Status GgufWriter::Append(absl::Span<const std::byte> bytes) {
  if (written_ == tensors_.size()) {
    return absl::OutOfRangeError("every tensor of the GGUF file is written already");
  }
  const GgufTensor& tensor = tensors_[written_];
  const int64_t wanted = *GgufBytes(tensor), given = static_cast<int64_t>(bytes.size());
  if (given != wanted) {
    return absl::OutOfRangeError(
        absl::StrCat("tensor ", tensor.name, " has ", wanted, " bytes, got ", given));
  }
  RETURN_IF_ERROR(sink_(bytes));
  static constexpr std::byte kZeros[kAlignment] = {};
  const int64_t padding = Padded(wanted) - wanted;
  if (padding > 0) RETURN_IF_ERROR(sink_(absl::MakeConstSpan(kZeros, padding)));
  ++written_;
  return absl::OkStatus();
}

absl::Status GgufWriter::Finish() const {
  if (written_ == tensors_.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("tensor ", tensors_[written_].name, " of the GGUF file was not written"));
}

}  // namespace espalier
