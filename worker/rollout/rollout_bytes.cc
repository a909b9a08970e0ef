#include "worker/rollout/rollout_bytes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/sync/together.h"

namespace espalier {
namespace {

class Packer {
 public:
  template <typename T>
  void Value(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Text(absl::string_view text) {
    Value(static_cast<int64_t>(text.size()));
    bytes_.append(text.data(), text.size());
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// What is not there reads as 0 or empty, and whole() says so.
class Unpacker {
 public:
  explicit Unpacker(absl::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Value() {
    T value{};
    const absl::string_view from = Take(sizeof(T));
    if (from.size() == sizeof(T)) std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  // Of things of so many bytes each at least.
  size_t Count(size_t bytes_of_one) {
    const auto count = Value<int64_t>();
    whole_ = whole_ && count >= 0 &&
             static_cast<uint64_t>(count) <= bytes_.size() / std::max<size_t>(1, bytes_of_one);
    return whole_ ? static_cast<size_t>(count) : 0;
  }
  std::string Text() { return std::string(Take(Count(1))); }
  absl::string_view Take(size_t size) {
    whole_ = whole_ && size <= bytes_.size();
    const absl::string_view taken = bytes_.substr(0, whole_ ? size : 0);
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  bool whole() const { return whole_; }
  bool empty() const { return bytes_.empty(); }

 private:
  absl::string_view bytes_;
  bool whole_ = true;
};

void PackJudgement(const Judgement& judgement, Packer& packer) {
  packer.Value(static_cast<int64_t>(judgement.components.size()));
  for (const RewardComponent& component : judgement.components) {
    packer.Text(component.name);
    packer.Value(component.value);
  }
  packer.Value(judgement.total);
  packer.Text(judgement.invalid);
}

Judgement UnpackJudgement(Unpacker& unpacker) {
  Judgement judgement;
  judgement.components.resize(unpacker.Count(sizeof(int64_t) + sizeof(double)));
  for (RewardComponent& component : judgement.components) {
    component.name = unpacker.Text();
    component.value = unpacker.Value<double>();
  }
  judgement.total = unpacker.Value<double>();
  judgement.invalid = unpacker.Text();
  return judgement;
}

}  // namespace

std::string PackRollouts(const std::vector<Rollout>& rollouts) {
  Packer packer;
  for (const Rollout& one : rollouts) {
    packer.Value(one.prompt);
    packer.Value(one.sample);
    packer.Value(static_cast<int64_t>(one.stopped));
    packer.Value(static_cast<int64_t>(one.ids.size()));
    for (const int32_t id : one.ids) packer.Value(id);
    packer.Text(one.text);
    PackJudgement(one.judgement, packer);
  }
  return packer.Take();
}

absl::StatusOr<std::vector<Rollout>> UnpackRollouts(absl::string_view bytes) {
  Unpacker unpacker(bytes);
  std::vector<Rollout> rollouts;
  while (!unpacker.empty() && unpacker.whole()) {
    Rollout one;
    one.prompt = unpacker.Value<int64_t>();
    one.sample = unpacker.Value<int64_t>();
    one.stopped = unpacker.Value<int64_t>() != 0;
    one.ids.resize(unpacker.Count(sizeof(int32_t)));
    for (int32_t& id : one.ids) id = unpacker.Value<int32_t>();
    one.text = unpacker.Text();
    one.judgement = UnpackJudgement(unpacker);
    rollouts.push_back(std::move(one));
  }
  if (unpacker.whole()) return rollouts;
  return absl::InternalError("completions that a rank sent are cut, or of another version");
}

absl::StatusOr<std::vector<std::string>> GatherBytes(Collective& collective,
                                                     absl::string_view mine) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                   GatherValues(collective, static_cast<int64_t>(mine.size())));
  PartEnds ends;
  int64_t end = 0;
  for (const int64_t size : sizes) ends.push_back(end += size);
  if (end == 0) return std::vector<std::string>(sizes.size());
  // After an error the exchange may still write there, so it is left.
  auto all = std::make_unique<std::string>(static_cast<size_t>(end), '\0');
  const auto rank = static_cast<size_t>(collective.rank().value());
  std::copy(mine.begin(), mine.end(), all->begin() + (ends[rank] - sizes[rank]));
  const absl::Status status = collective.Wait(collective.StartAllGather(
      absl::MakeSpan(reinterpret_cast<std::byte*>(all->data()), all->size()), ends));
  if (!status.ok()) {
    all.release();
    return status;
  }
  std::vector<std::string> parts;
  for (size_t i = 0; i < sizes.size(); ++i) {
    parts.push_back(
        all->substr(static_cast<size_t>(ends[i] - sizes[i]), static_cast<size_t>(sizes[i])));
  }
  return parts;
}

}  // namespace espalier
