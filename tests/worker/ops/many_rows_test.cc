// Products of so many rows that a device takes other kernels for them than for few.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/ops/products.h"
#include "worker/tensor/torch_compat.h"

namespace espalier::fused_ops {
namespace {

using torch::Tensor;

constexpr int64_t kFew = 1'000, kOut = 512;
// On the CPU no kernel differs, and large products take long.
int64_t RowsOn(torch::Device device) { return device.is_cuda() ? 62'000 : 3'000; }
int64_t InnerOn(torch::Device device) { return device.is_cuda() ? 512 : 64; }

// Of rows of dx or y, to which it may add.
using OfRows = std::function<Tensor(const Tensor& rows, const Tensor& to)>;

void ExpectPartsOf(const OfRows& product, const Tensor& rows, const Tensor& to,
                   const std::string& what) {
  const Tensor whole = product(rows, to.clone());
  std::vector<Tensor> parts;
  for (int64_t first = 0; first < rows.size(0); first += kFew) {
    parts.push_back(product(rows.narrow(0, first, kFew), to.narrow(0, first, kFew).clone()));
  }
  const bool same = torch::allclose(whole, torch::cat(parts), /*rtol=*/1e-2, /*atol=*/5e-2);
  EXPECT_TRUE(same) << what;
}

TEST(Products, OfManyRowsAreThoseOfFew) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(4);
  std::vector<torch::Device> devices = {torch::kCPU};
  if (HasCuda()) devices.emplace_back(torch::kCUDA);
  for (const torch::Device device : devices) {
    for (const torch::ScalarType type : {torch::kFloat, torch::kBFloat16}) {
      const auto options = torch::TensorOptions(device).dtype(type);
      const int64_t in = InnerOn(device);
      const Tensor x = torch::randn({RowsOn(device), in}, options);
      const Tensor y = torch::randn({RowsOn(device), kOut}, options);
      for (const bool transposed : {false, true}) {
        const std::string what = absl::StrCat(device.str(), transposed ? ", transposed" : "");
        const Tensor weight =
            transposed ? torch::randn({in, kOut}, options) : torch::randn({kOut, in}, options);
        const ops::Projection projection{weight, {}, transposed};
        ExpectPartsOf(
            [&](const Tensor& rows, const Tensor&) { return Product(rows, projection, {}); }, x, y,
            what);
        ExpectPartsOf(
            [&](const Tensor& rows, const Tensor& to) { return Product(rows, projection, to); }, x,
            y, absl::StrCat(what, ", with a residual"));
        // Turned round, rows of `in` give rows of kOut.
        const ops::Projection back{weight, {}, !transposed};
        for (const bool add : {false, true}) {
          ExpectPartsOf(
              [&](const Tensor& rows, const Tensor& to) {
                InputGradient(rows, back, add, to);
                return to;
              },
              x, y, absl::StrCat(what, ", a gradient", add ? " that is added" : ""));
        }
      }
    }
  }
}

}  // namespace
}  // namespace espalier::fused_ops
