#include "worker/model/parameters.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

// Elements that share one random stream; fixed, since it decides the values.
constexpr int64_t kStreamElements = 4096;

// FNV-1a.
uint64_t HashName(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}

// Rounded to 2^-20, so that the last bits of a platform's log and cos do not reach the weights.
float Normal(double radius, double angle_component, double deviation) {
  return static_cast<float>(std::nearbyint(radius * angle_component * 0x1p20) * 0x1p-20 *
                            deviation);
}

// Box and Muller 1958, eq. 1; `n` values from stream `chunk` of `seed`.
void FillNormal(float* to, int64_t n, uint64_t seed, uint64_t chunk, double deviation) {
  constexpr double kTwoPi = 6.283185307179586;
  SplitMix64 random(seed, chunk);
  for (int64_t i = 0; i < n; i += 2) {
    const double radius = std::sqrt(-2 * std::log(1 - random.Uniform()));
    const double angle = kTwoPi * random.Uniform();
    to[i] = Normal(radius, std::cos(angle), deviation);
    if (i + 1 < n) to[i + 1] = Normal(radius, std::sin(angle), deviation);
  }
}

torch::Tensor NormalTensor(const ParameterShape& shape, uint64_t seed, double deviation) {
  torch::Tensor values = torch::empty(shape.shape, torch::kFloat);
  float* data = values.data_ptr<float>();
  const int64_t size = values.numel();
  const uint64_t stream = MixBits(seed) ^ HashName(shape.name);
  const int64_t chunks = (size + kStreamElements - 1) / kStreamElements;
  at::parallel_for(0, chunks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kStreamElements;
      FillNormal(data + first, std::min(kStreamElements, size - first), stream,
                 static_cast<uint64_t>(chunk), deviation);
    }
  });
  return values;
}

class ShapeList {
 public:
  explicit ShapeList(const DecoderConfig& config) : config_(config) {}

  void Matrix(absl::string_view name, int64_t rows, int64_t columns) {
    shapes_.push_back({Full(name, ".weight"), {rows, columns}, layer_, /*decay=*/true});
  }
  void Vector(absl::string_view name, absl::string_view kind, int64_t size) {
    shapes_.push_back({Full(name, kind), {size}, layer_, /*decay=*/false});
  }
  void BiasIf(bool present, absl::string_view name, int64_t size) {
    if (present) Vector(name, ".bias", size);
  }
  // The reverse of the forward pass.
  void Layer(int64_t layer) {
    const DecoderConfig& c = config_;
    const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    layer_ = layer;
    Projection("mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
    Projection("mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    Projection("mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    Vector("post_attention_layernorm", ".weight", c.hidden_size);
    Projection("self_attn.o_proj", c.hidden_size, q, c.output_bias);
    if (c.qk_norm) {
      Vector("self_attn.k_norm", ".weight", c.head_dim);
      Vector("self_attn.q_norm", ".weight", c.head_dim);
    }
    Projection("self_attn.v_proj", kv, c.hidden_size, c.attention_bias);
    Projection("self_attn.k_proj", kv, c.hidden_size, c.attention_bias);
    Projection("self_attn.q_proj", q, c.hidden_size, c.attention_bias);
    Vector("input_layernorm", ".weight", c.hidden_size);
  }
  void Outside(int64_t layer) { layer_ = layer; }
  std::vector<ParameterShape> Take() { return std::move(shapes_); }

 private:
  void Projection(absl::string_view name, int64_t out, int64_t in, bool bias) {
    BiasIf(bias, name, out);
    Matrix(name, out, in);
  }
  std::string Full(absl::string_view name, absl::string_view kind) const {
    if (layer_ < 0 || layer_ >= config_.layers) return absl::StrCat(name, kind);
    return absl::StrCat("model.layers.", layer_, ".", name, kind);
  }

  const DecoderConfig& config_;
  int64_t layer_ = 0;
  std::vector<ParameterShape> shapes_;
};

int64_t ElementsOf(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

bool IsNorm(const ParameterShape& shape) {
  return shape.shape.size() == 1 && shape.name.find("norm") != std::string::npos;
}

// A parameter's part of a flat tensor, with a version of its own.
torch::Tensor ViewOf(const torch::Tensor& flat, const Parameter& parameter) {
  return flat.narrow(0, parameter.offset, parameter.size)
      .view(parameter.shape.shape)
      .variable_data();
}

// What is not multiplied by the matrix units is read in fp32: in bfloat16 a weight near 1 would
// move in steps of a hundredth.
bool UsedInFull(const ParameterShape& shape) {
  return IsNorm(shape) || shape.name == "model.embed_tokens.weight";
}

}  // namespace

std::vector<ParameterShape> ParameterShapes(const DecoderConfig& config) {
  ShapeList list(config);
  const bool tied = config.tie_word_embeddings;
  constexpr char kTable[] = "model.embed_tokens";
  list.Outside(config.layers);
  list.Matrix(tied ? kTable : "lm_head", config.vocab_size, config.hidden_size);
  list.Vector("model.norm", ".weight", config.hidden_size);
  for (int64_t layer = config.layers - 1; layer >= 0; --layer) list.Layer(layer);
  list.Outside(-1);
  if (!tied) list.Matrix(kTable, config.vocab_size, config.hidden_size);
  return list.Take();
}

absl::StatusOr<Parameters> Parameters::Create(const DecoderConfig& config, torch::Device device,
                                              Gradients gradients, torch::ScalarType compute_type) {
  Parameters parameters;
  int64_t elements = 0, copied = 0;
  for (ParameterShape& shape : ParameterShapes(config)) {
    const int64_t size = ElementsOf(shape.shape);
    parameters.all_.push_back({std::move(shape), elements, size, {}, {}});
    elements += size;
    const bool tied = config.tie_word_embeddings;  // then the head reads the table's copy
    if (tied || !UsedInFull(parameters.all_.back().shape)) copied = elements;
  }
  const int64_t with_gradients = gradients == Gradients::kNone ? 0
                                 : gradients == Gradients::kAllocate
                                     ? elements
                                     : parameters.elements_before_lookups();
  const bool with_copy = compute_type != torch::kFloat;
  const int64_t bytes = 4 * (elements + with_gradients) + (with_copy ? 2 * copied : 0);
  const auto options = torch::TensorOptions().dtype(torch::kFloat).device(device);
  absl::Status status = CatchTorch(
      absl::StrCat("allocating ", bytes, " bytes for ", elements, " parameters",
                   with_gradients > 0 ? " and their gradients" : "", " on ", device.str()),
      [&] {
        parameters.flat_ = torch::empty({elements}, options);
        if (with_gradients > 0) {
          parameters.gradient_ = torch::zeros({with_gradients}, options);
        }
        if (!with_copy) return;
        parameters.copy_ = torch::empty({copied}, options.dtype(compute_type));
      });
  if (!status.ok()) return status;
  for (Parameter& parameter : parameters.all_) {
    const bool narrow = with_copy && !UsedInFull(parameter.shape);
    parameter.value = ViewOf(parameters.flat_, parameter);
    parameter.leaf = narrow ? ViewOf(parameters.copy_, parameter) : parameter.value;
    if (parameter.offset >= with_gradients) continue;
    parameter.leaf.set_requires_grad(true);
    parameter.leaf.mutable_grad() = ViewOf(parameters.gradient_, parameter);
  }
  if (config.tie_word_embeddings) {
    const Parameter& table = *parameters.Find("model.embed_tokens.weight");
    const torch::Tensor& flat = with_copy ? parameters.copy_ : parameters.flat_;
    parameters.tied_head_ = ViewOf(flat, table).set_requires_grad(with_gradients > 0);
    if (with_gradients > 0)
      parameters.tied_head_.mutable_grad() = ViewOf(parameters.gradient_, table);
  }
  return parameters;
}

void Parameters::Initialize(uint64_t seed, double initializer_range) {
  torch::NoGradGuard no_grad;
  for (Parameter& parameter : all_) {
    if (parameter.shape.shape.size() == 2) {
      parameter.value.copy_(NormalTensor(parameter.shape, seed, initializer_range));
    } else {
      parameter.value.fill_(IsNorm(parameter.shape) ? 1 : 0);
    }
  }
  RefreshCopy();
}

void Parameters::RefreshCopy() {
  if (!copy_.defined()) return;
  torch::NoGradGuard no_grad;
  copy_.copy_(flat_.narrow(0, 0, copy_.numel()));
}

const Parameter* Parameters::Find(absl::string_view name) const {
  for (const Parameter& parameter : all_) {
    if (parameter.shape.name == name) return &parameter;
  }
  return nullptr;
}

torch::Tensor Parameters::Get(absl::string_view name) const {
  const Parameter* parameter = Find(name);
  return parameter == nullptr ? torch::Tensor() : parameter->value;
}

torch::Tensor Parameters::Head() const {
  return tied_head_.defined() ? tied_head_ : Find("lm_head.weight")->leaf;
}

std::vector<torch::Tensor> Parameters::Roles() const {
  std::vector<torch::Tensor> roles;
  for (const Parameter& parameter : all_) {
    if (parameter.leaf.requires_grad()) roles.push_back(parameter.leaf);
  }
  if (tied_head_.defined()) roles.push_back(tied_head_);
  return roles;
}

int64_t Parameters::elements_before_lookups() const {
  const Parameter& last = all_.back();
  return last.shape.layer < 0 ? last.offset : last.offset + last.size;
}

void Parameters::ZeroGradients() {
  if (gradient_.defined()) gradient_.zero_();
  lookup_gradient_ = {};
}

}  // namespace espalier
