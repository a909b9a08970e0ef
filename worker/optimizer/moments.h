// Moments: the two running means of AdamW for every element that is trained, in fp32 or as 8-bit
// optimizer state, with a unit for each moment8::kBlock of them (adamw_math.h). Blocks begin anew
// with each parameter, so that a parameter's moments can be saved and loaded by themselves. Used by
// optimizer.h and worker/memory/memory_advice.cc. Compute thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "worker/kernels/adamw_math.h"
#include "worker/model/parameters.h"
#include "worker/tensor/torch.h"

namespace espalier {

// Bytes that the moments of `elements` take, about.
int64_t MomentBytes(v1::MomentType type, int64_t elements);

class Moments {
 public:
  // Zeroed, on the device that updates them: CUDA for parameters there, else the host.
  // RESOURCE_EXHAUSTED names the bytes needed.
  static absl::StatusOr<Moments> Create(v1::MomentType type, const Parameters& parameters);

  bool in_8_bits() const { return first_unit_.defined(); }
  torch::Device device() const { return first_.device(); }
  const FlatTensor& first() const { return first_; }    // [elements], fp32 or int8
  const FlatTensor& second() const { return second_; }  // [elements], fp32 or uint8
  // Everything: the arenas of first and second, with 8 bits also the units of both.
  std::vector<torch::Tensor> Buffers() const;

  // One parameter's part of a buffer, under the name it has in a checkpoint before the
  // parameter's: "exp_avg.".
  struct Part {
    const char* prefix;
    torch::Tensor values;  // a view; codes in the parameter's shape, units [blocks]
  };
  static constexpr char kFirstPrefix[] = "exp_avg.";
  std::vector<Part> PartsOf(size_t parameter) const;  // its place in Parameters::trained()
  // What is not made by Create but read: empty parts of the other kind on the host, and their
  // values in this kind, to the nearest.
  std::vector<Part> PartsOfTheOtherKind(size_t parameter) const;
  std::vector<Part> FromTheOtherKind(const std::vector<Part>& parts) const;

  // Where the 8-bit state of a parameter's elements from `begin` on is.
  Moments8 At(size_t parameter, int64_t begin) const;

 private:
  struct Place {
    int64_t offset;  // elements
    int64_t size;
    int64_t first_block;
    std::vector<int64_t> shape;
  };
  std::vector<Place> places_;
  FlatTensor first_, second_;
  torch::Tensor first_unit_, second_unit_;  // [blocks], fp32; undefined in fp32
};

}  // namespace espalier
