// GgufFile: a strict reader of GGUF files, which takes nothing that llama.cpp might read otherwise:
// no unknown type, no name twice, no gap, no byte too many. Used by tests/worker/. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/formats/gguf.h"

namespace espalier {

class GgufFile {
 public:
  struct Tensor {
    GgufType type;
    std::vector<uint64_t> dimensions;  // the fastest first, as in the file
    std::string bytes;
  };

  // DATA_LOSS says what is wrong, and where.
  static absl::StatusOr<GgufFile> Parse(absl::string_view file);

  const std::map<std::string, GgufValue>& facts() const { return facts_; }
  const std::vector<std::string>& names() const { return names_; }  // of tensors, in order
  const Tensor& tensor(const std::string& name) const { return tensors_.at(name); }
  template <typename T>
  T Fact(const std::string& name) const {
    return std::get<T>(facts_.at(name));
  }

 private:
  friend class GgufParser;

  std::map<std::string, GgufValue> facts_;
  std::vector<std::string> names_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace espalier
