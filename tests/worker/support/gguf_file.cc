#include "tests/worker/support/gguf_file.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {

class GgufParser {
 public:
  explicit GgufParser(absl::string_view file) : file_(file) {}

  absl::StatusOr<GgufFile> Parse() {
    ASSIGN_OR_RETURN(const uint32_t magic, Number<uint32_t>());
    ASSIGN_OR_RETURN(const uint32_t version, Number<uint32_t>());
    if (magic != 0x46554747 || version != 3) return Wrong("no GGUF file of version 3");
    ASSIGN_OR_RETURN(const uint64_t tensors, Number<uint64_t>());
    ASSIGN_OR_RETURN(const uint64_t facts, Number<uint64_t>());
    for (uint64_t i = 0; i < facts; ++i) {
      ASSIGN_OR_RETURN(const std::string name, Text());
      ASSIGN_OR_RETURN(GgufValue value, Value());
      if (!made_.facts_.emplace(name, std::move(value)).second) return Wrong("a fact comes twice");
    }
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < tensors; ++i) RETURN_IF_ERROR(TakePlace(offsets));
    RETURN_IF_ERROR(Align());
    const size_t data = at_;
    for (size_t i = 0; i < made_.names_.size(); ++i) {
      if (at_ - data != offsets[i]) return Wrong(made_.names_[i] + " begins elsewhere");
      RETURN_IF_ERROR(TakeData(made_.names_[i]));
    }
    if (at_ != file_.size()) return Wrong("bytes are left");
    return std::move(made_);
  }

 private:
  absl::Status Wrong(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(what, " before byte ", at_));
  }

  template <typename T>
  absl::StatusOr<T> Number() {
    if (file_.size() - at_ < sizeof(T)) return Wrong("the file ends");
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  absl::StatusOr<std::string> Text() {
    ASSIGN_OR_RETURN(const uint64_t size, Number<uint64_t>());
    if (file_.size() - at_ < size) return Wrong("a text is longer than the file");
    at_ += size;
    return std::string(file_.substr(at_ - size, size));
  }

  template <typename T, typename Take>
  absl::StatusOr<GgufValue> Array(Take take) {
    ASSIGN_OR_RETURN(const uint64_t size, Number<uint64_t>());
    std::vector<T> values;
    for (uint64_t i = 0; i < size; ++i) {
      ASSIGN_OR_RETURN(T value, take());
      values.push_back(std::move(value));
    }
    return GgufValue(std::move(values));
  }

  absl::StatusOr<GgufValue> Value() {
    ASSIGN_OR_RETURN(const uint32_t type, Number<uint32_t>());
    if (type == 4) return Number<uint32_t>();
    if (type == 6) return Number<float>();
    if (type == 8) return Text();
    if (type == 7) {
      ASSIGN_OR_RETURN(const uint8_t flag, Number<uint8_t>());
      if (flag > 1) return Wrong("a flag is neither 0 nor 1");
      return GgufValue(flag == 1);
    }
    if (type != 9) return Wrong(absl::StrCat("a value of type ", type));
    ASSIGN_OR_RETURN(const uint32_t of, Number<uint32_t>());
    if (of == 5) return Array<int32_t>([this] { return Number<int32_t>(); });
    if (of == 6) return Array<float>([this] { return Number<float>(); });
    if (of == 8) return Array<std::string>([this] { return Text(); });
    return Wrong(absl::StrCat("an array of type ", of));
  }

  absl::Status TakePlace(std::vector<uint64_t>& offsets) {
    ASSIGN_OR_RETURN(const std::string name, Text());
    if (name.empty() || name.size() > 63) return Wrong("a tensor's name is empty or too long");
    GgufFile::Tensor tensor;
    ASSIGN_OR_RETURN(const uint32_t dimensions, Number<uint32_t>());
    if (dimensions < 1 || dimensions > 4) return Wrong("a tensor has not 1 to 4 dimensions");
    for (uint32_t i = 0; i < dimensions; ++i) {
      ASSIGN_OR_RETURN(const uint64_t size, Number<uint64_t>());
      tensor.dimensions.push_back(size);
    }
    ASSIGN_OR_RETURN(const uint32_t type, Number<uint32_t>());
    if (type != 0 && type != 1 && type != 8 && type != 30) return Wrong("an unknown type");
    tensor.type = static_cast<GgufType>(type);
    ASSIGN_OR_RETURN(const uint64_t offset, Number<uint64_t>());
    offsets.push_back(offset);
    made_.names_.push_back(name);
    if (made_.tensors_.emplace(name, std::move(tensor)).second) return absl::OkStatus();
    return Wrong("a tensor comes twice");
  }

  absl::Status TakeData(const std::string& name) {
    GgufFile::Tensor& tensor = made_.tensors_.at(name);
    uint64_t elements = 1;
    for (const uint64_t size : tensor.dimensions) elements *= size;
    const uint64_t bytes = tensor.type == GgufType::kQ8_0  ? elements / 32 * 34
                           : tensor.type == GgufType::kF32 ? elements * 4
                                                           : elements * 2;
    if (file_.size() - at_ < bytes) return Wrong("the file ends in " + name);
    tensor.bytes = std::string(file_.substr(at_, bytes));
    at_ += bytes;
    return Align();
  }

  absl::Status Align() {
    for (; at_ % 32 != 0; ++at_) {
      if (at_ >= file_.size() || file_[at_] != '\0') return Wrong("padding is missing or not zero");
    }
    return absl::OkStatus();
  }

  absl::string_view file_;
  size_t at_ = 0;
  GgufFile made_;
};

absl::StatusOr<GgufFile> GgufFile::Parse(absl::string_view file) {
  return GgufParser(file).Parse();
}

}  // namespace espalier
