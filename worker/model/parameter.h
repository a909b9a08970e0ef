// One tensor of a decoder: what it is, where it lies, and what the decoder computes with; and the
// gradient of a table of which a step looks up rows. Used by parameters.h, which makes and holds
// them. Plain data; see there for threads.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/model/parameter_shapes.h"
#include "worker/tensor/torch.h"

namespace espalier {

struct Parameter {
  ParameterShape shape;
  bool trained = false;
  int64_t offset = 0;   // elements from the start of the flat buffers; of what is trained
  int64_t size = 0;     // elements
  torch::Tensor value;  // [shape] fp32, a view of the flat values; of what is frozen the leaf
  // What the decoder computes with: its copy in the compute type where it is multiplied as a matrix
  // or added as a bias, else `value` itself, or an fp32 copy where that lies on the host. Of what
  // is trained a leaf that requires grad (but a table whose rows are apart), and leaf.grad() is the
  // fp32 view of the flat gradient also where the leaf is of another type: operations add to it in
  // place.
  torch::Tensor leaf;
};

// The gradient of an untied embedding, as the rows that a step has looked up; all others are zero.
struct LookupGradient {
  std::vector<int64_t> ids;  // growing
  torch::Tensor rows;        // [ids, C] fp32, on any device; undefined without ids
};

}  // namespace espalier
