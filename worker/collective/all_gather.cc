#include "worker/collective/all_gather.h"

#include <memory>

namespace espalier {

AllGather::AllGather(Messages& messages, const Layout& layout, int depth, Route route)
    : messages_(messages), layout_(layout), depth_(depth), route_(route) {}

void AllGather::Start() {
  continues_ = true;
  for (int64_t chunk = 0; chunk < depth_; ++chunk) {
    for (int owner = 0; owner < layout_.ranks(); ++owner) Begin(owner, chunk);
  }
}

void AllGather::Begin(int owner, int64_t chunk) {
  if (chunk >= layout_.Chunks(owner)) return;
  owner == layout_.rank() ? Send(chunk) : Receive(owner, chunk);
}

// To whom this rank sends what it has of the owner's part.
std::vector<int> AllGather::Receivers(int owner) const {
  const int rank = layout_.rank(), ranks = layout_.ranks();
  std::vector<int> receivers;
  if (route_ == Route::kRing) {
    if (const int next = (rank + 1) % ranks; next != owner) receivers.push_back(next);
  } else if (owner == rank) {
    for (int shift = 1; shift < ranks; ++shift) receivers.push_back((rank + shift) % ranks);
  }
  return receivers;
}

void AllGather::Receive(int owner, int64_t chunk) {
  const int from =
      route_ == Route::kRing ? (layout_.rank() + layout_.ranks() - 1) % layout_.ranks() : owner;
  messages_.Receive(layout_.Encoded(layout_.Chunk(owner, chunk)), from,
                    ChunkTag(Purpose::kFinal, owner, chunk),
                    [this, owner, chunk] { PassOn(owner, chunk); });
}

void AllGather::PassOn(int owner, int64_t chunk) {
  const std::vector<int> receivers = Receivers(owner);
  if (receivers.empty()) return Over(owner, chunk);
  const absl::Span<const std::byte> bytes = layout_.Encoded(layout_.Chunk(owner, chunk));
  bytes_sent_ += static_cast<int64_t>(receivers.size() * bytes.size());
  const auto unsent = std::make_shared<size_t>(receivers.size());
  for (const int peer : receivers) {
    messages_.Send(bytes, peer, ChunkTag(Purpose::kFinal, owner, chunk),
                   [this, owner, chunk, unsent] {
                     if (--*unsent == 0) Over(owner, chunk);
                   });
  }
}

// Nothing of the chunk is under way any more: its memory holds values again.
void AllGather::Over(int owner, int64_t chunk) {
  layout_.Decode(layout_.Chunk(owner, chunk));
  if (continues_) Begin(owner, chunk + depth_);
}

}  // namespace espalier
