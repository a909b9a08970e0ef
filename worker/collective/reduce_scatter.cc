#include "worker/collective/reduce_scatter.h"

#include <algorithm>
#include <utility>

namespace espalier {
namespace {

// Bounds the memory for addends where there are many ranks.
int64_t Rows(const Layout& layout, int depth) {
  constexpr int64_t kAddendBytesMax = 256 << 20;
  const int64_t row_bytes = layout.ChunkBytes() * (layout.ranks() - 1);
  const int64_t affordable =
      row_bytes == 0 ? depth : std::max<int64_t>(1, kAddendBytesMax / row_bytes);
  return std::min({static_cast<int64_t>(depth), layout.Chunks(layout.rank()), affordable});
}

}  // namespace

ReduceScatter::ReduceScatter(Messages& messages, const Layout& layout, int depth,
                             ScratchMemory& scratch, Events events)
    : messages_(messages),
      layout_(layout),
      depth_(depth),
      events_(std::move(events)),
      rows_(Rows(layout, depth)),
      next_send_(layout.ranks()),
      missing_(layout.Chunks(layout.rank()), layout.ranks() - 1),
      addends_(scratch.Get(rows_ * (layout.ranks() - 1) * layout.ChunkBytes())) {}

// Where the addend of `chunk` that comes from `peer` is kept until all are there.
std::byte* ReduceScatter::Addend(int64_t chunk, int peer) {
  const int column = peer < layout_.rank() ? peer : peer - 1;
  return addends_ + ((chunk % rows_) * (layout_.ranks() - 1) + column) * layout_.ChunkBytes();
}

void ReduceScatter::Start() {
  for (int64_t chunk = 0; chunk < rows_; ++chunk) Receive(chunk);
  for (int i = 0; i < depth_; ++i) {
    for (int shift = 1; shift < layout_.ranks(); ++shift) {
      SendNext((layout_.rank() + shift) % layout_.ranks());
    }
  }
}

void ReduceScatter::SendNext(int owner) {
  const int64_t chunk = next_send_[owner];
  if (chunk >= layout_.Chunks(owner)) return;
  ++next_send_[owner];
  const Range range = layout_.Chunk(owner, chunk);
  layout_.Encode(range);
  const absl::Span<const std::byte> bytes = layout_.Encoded(range);
  bytes_sent_ += static_cast<int64_t>(bytes.size());
  messages_.Send(bytes, owner, ChunkTag(Purpose::kToBeAdded, owner, chunk), [this, owner, chunk] {
    events_.sent(owner, chunk);
    SendNext(owner);
  });
}

void ReduceScatter::Receive(int64_t chunk) {
  const int rank = layout_.rank();
  const size_t bytes = layout_.Encoded(layout_.Chunk(rank, chunk)).size();
  for (int peer = 0; peer < layout_.ranks(); ++peer) {
    if (peer == rank) continue;
    messages_.Receive({Addend(chunk, peer), bytes}, peer,
                      ChunkTag(Purpose::kToBeAdded, rank, chunk),
                      [this, chunk] { Arrived(chunk); });
  }
}

void ReduceScatter::Arrived(int64_t chunk) {
  if (--missing_[chunk] > 0) return;
  Sum(chunk);
  events_.summed(chunk);
  const int64_t next = chunk + rows_;
  if (next < static_cast<int64_t>(missing_.size())) Receive(next);
}

void ReduceScatter::Sum(int64_t chunk) {
  const absl::Span<float> values = layout_.Values(layout_.Chunk(layout_.rank(), chunk));
  std::vector<WireAddend> addends;
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    const bool own = rank == layout_.rank();
    addends.push_back(
        {own ? reinterpret_cast<std::byte*>(values.data()) : Addend(chunk, rank), !own});
  }
  SumInRankOrder(layout_.wire(), addends, values.data(), static_cast<int64_t>(values.size()));
}

}  // namespace espalier
