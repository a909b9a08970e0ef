// Strong ids and counters of the system (see the words in README.md): a Step cannot be passed where
// a Rank is meant. Used by common/, coordinator/, worker/. Plain values: any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace espalier {

template <typename Tag>
class Number {
 public:
  constexpr Number() = default;
  constexpr explicit Number(int64_t value) : value_(value) {}
  constexpr int64_t value() const { return value_; }
  constexpr Number next() const { return Number(value_ + 1); }
  friend constexpr auto operator<=>(Number, Number) = default;

  template <typename H>
  friend H AbslHashValue(H h, Number number) {
    return H::combine(std::move(h), number.value_);
  }

 private:
  int64_t value_ = 0;
};

template <typename Tag>
class Name {
 public:
  Name() = default;
  explicit Name(absl::string_view text) : text_(text) {}
  const std::string& text() const { return text_; }
  bool empty() const { return text_.empty(); }
  friend auto operator<=>(const Name&, const Name&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const Name& name) {
    return H::combine(std::move(h), name.text_);
  }

 private:
  std::string text_;
};

using JobId = Name<struct JobIdTag>;
using NodeName = Name<struct NodeNameTag>;
// One MPI world of one job, from 1; 0 is "none yet".
using Generation = Number<struct GenerationTag>;
// Position in the MPI world, from 0.
using Rank = Number<struct RankTag>;
// Optimizer updates, from 0. As a count, "committed steps" is the next step's number.
using Step = Number<struct StepTag>;

struct GenerationKey {
  JobId job;
  Generation generation;
  friend auto operator<=>(const GenerationKey&, const GenerationKey&) = default;
};

// Names one process of this machine for ever: a pid alone is given to another process sooner or
// later.
struct ProcessIdentity {
  int64_t pid = 0;
  // Opaque, compared for equality only: the boot and the start time of the process within it.
  std::string start;
  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

}  // namespace espalier
