#include "common/config/recompute.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/config/yaml_tree.h"

namespace espalier {
namespace {

absl::Status Refuse(const std::string& what, int64_t layers) {
  return absl::InvalidArgumentError(absl::StrCat(
      "train.recompute ", what, "; allowed: none, alternate, all, or a list of layers from 0 to ",
      layers - 1, ", each once"));
}

}  // namespace

absl::StatusOr<std::vector<bool>> RecomputedLayers(const v1::TrainSpec& train, int64_t layers) {
  std::vector<bool> result(layers, false);
  const auto& entries = train.recompute();
  for (const std::string& entry : entries) {
    const bool all = entry == "all";
    if (all || entry == "alternate" || entry == "none") {
      if (entries.size() > 1)
        return Refuse(absl::StrCat("has ", Quoted(entry), " in a list"), layers);
      const int64_t stride = all ? 1 : 2;
      for (int64_t i = 0; i < layers && entry != "none"; i += stride) result[i] = true;
      continue;
    }
    int64_t layer = 0;
    if (!absl::SimpleAtoi(entry, &layer) || layer < 0 || layer >= layers) {
      return Refuse(absl::StrCat("has ", Quoted(entry)), layers);
    }
    if (result[layer]) return Refuse(absl::StrCat("has layer ", layer, " twice"), layers);
    result[layer] = true;
  }
  return result;
}

}  // namespace espalier
