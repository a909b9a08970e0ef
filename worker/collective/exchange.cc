#include "worker/collective/exchange.h"

#include <algorithm>
#include <cstring>

namespace espalier {
namespace {

// One tag per kind and chunk, so that completion order does not matter.
constexpr int kChunkTags = 1 << 20;
enum class Kind { kPart, kSum, kCopy };
int Tag(Kind kind, int64_t chunk) {
  return static_cast<int>(kind) * kChunkTags + static_cast<int>(chunk % kChunkTags);
}

const MpiWorld::Done kNothing = [] {};

}  // namespace

AllReduce::AllReduce(MpiWorld& world, const ExchangeOptions& options, absl::Span<float> values)
    : world_(world),
      options_(options),
      chunk_elements_(std::max<int64_t>(1, options.chunk_bytes / sizeof(float))),
      values_(values),
      peers_(world.size()) {
  const int64_t mine = PieceOf(values.size(), world.rank(), world.size()).size();
  const int64_t in_flight = std::min<int64_t>(options.depth, ChunkCount(mine, chunk_elements_));
  parts_missing_.resize(ChunkCount(mine, chunk_elements_), world.size() - 1);
  scratch_.resize(in_flight * world.size() * std::min(chunk_elements_, mine));
}

Range AllReduce::Chunk(int rank, int64_t index) const {
  return ChunkOf(PieceOf(values_.size(), rank, world_.size()), chunk_elements_, index);
}

absl::Span<std::byte> AllReduce::Bytes(const Range& range) const {
  return {reinterpret_cast<std::byte*>(values_.data() + range.begin), range.size() * sizeof(float)};
}

float* AllReduce::Scratch(int64_t chunk, int peer) {
  const int64_t mine = PieceOf(values_.size(), world_.rank(), world_.size()).size();
  const int64_t slot = (chunk % options_.depth) * world_.size() + peer;
  return scratch_.data() + slot * std::min(chunk_elements_, mine);
}

void AllReduce::Start() {
  const int64_t mine = static_cast<int64_t>(parts_missing_.size());
  for (int64_t chunk = 0; chunk < std::min<int64_t>(options_.depth, mine); ++chunk) {
    ReceiveParts(chunk);
  }
  for (int shift = 1; shift < world_.size(); ++shift) {
    const int peer = (world_.rank() + shift) % world_.size();
    for (int i = 0; i < options_.depth; ++i) SendNext(peer);
  }
}

// Sends the next chunk of the peer's piece. The sum of that chunk comes back to the same place, so
// its receive starts only when the send is over.
void AllReduce::SendNext(int peer) {
  const int64_t chunk = peers_[peer].next_send;
  const Range range = Chunk(peer, chunk);
  if (range.size() <= 0) return;
  ++peers_[peer].next_send;
  bytes_sent_ += Bytes(range).size();
  world_.Send(Bytes(range), peer, Tag(Kind::kPart, chunk), [this, peer, chunk] {
    ReceiveSum(peer, chunk);
    SendNext(peer);
  });
}

void AllReduce::ReceiveSum(int peer, int64_t chunk) {
  world_.Receive(Bytes(Chunk(peer, chunk)), peer, Tag(Kind::kSum, chunk), kNothing);
}

void AllReduce::ReceiveParts(int64_t chunk) {
  const Range range = Chunk(world_.rank(), chunk);
  for (int peer = 0; peer < world_.size(); ++peer) {
    if (peer == world_.rank()) continue;
    const absl::Span<std::byte> to(reinterpret_cast<std::byte*>(Scratch(chunk, peer)),
                                   range.size() * sizeof(float));
    world_.Receive(to, peer, Tag(Kind::kPart, chunk), [this, chunk] { PartArrived(chunk); });
  }
}

void AllReduce::PartArrived(int64_t chunk) {
  if (--parts_missing_[chunk] > 0) return;
  SumAndSend(chunk);
  const int64_t next = chunk + options_.depth;
  if (next < static_cast<int64_t>(parts_missing_.size())) ReceiveParts(next);
}

void AllReduce::SumAndSend(int64_t chunk) {
  const Range range = Chunk(world_.rank(), chunk);
  float* sum = values_.data() + range.begin;
  std::vector<const float*> parts;
  for (int rank = 0; rank < world_.size(); ++rank) {
    parts.push_back(rank == world_.rank() ? sum : Scratch(chunk, rank));
  }
  SumInRankOrder(parts, sum, range.size());
  for (int shift = 1; shift < world_.size(); ++shift) {
    const int peer = (world_.rank() + shift) % world_.size();
    bytes_sent_ += Bytes(range).size();
    world_.Send(Bytes(range), peer, Tag(Kind::kSum, chunk), kNothing);
  }
}

namespace {

// Calls visit(chunk number, bytes) for each chunk of `bytes`.
template <typename Byte, typename Visit>
void ForEachChunk(absl::Span<Byte> bytes, int64_t chunk_bytes, Visit visit) {
  for (size_t begin = 0, number = 0; begin < bytes.size(); begin += chunk_bytes, ++number) {
    visit(static_cast<int64_t>(number), bytes.subspan(begin, chunk_bytes));
  }
}

}  // namespace

int64_t StartBroadcast(MpiWorld& world, const ExchangeOptions& options, absl::Span<std::byte> bytes,
                       int root) {
  int64_t sent = 0;
  ForEachChunk(bytes, options.chunk_bytes, [&](int64_t number, absl::Span<std::byte> chunk) {
    const int tag = Tag(Kind::kCopy, number);
    if (world.rank() != root) {
      world.Receive(chunk, root, tag, kNothing);
      return;
    }
    for (int peer = 0; peer < world.size(); ++peer) {
      if (peer == root) continue;
      world.Send(chunk, peer, tag, kNothing);
      sent += chunk.size();
    }
  });
  return sent;
}

int64_t StartAllGather(MpiWorld& world, const ExchangeOptions& options,
                       absl::Span<const std::byte> mine, absl::Span<std::byte> all) {
  if (!mine.empty()) {
    std::memcpy(all.data() + world.rank() * mine.size(), mine.data(), mine.size());
  }
  int64_t sent = 0;
  for (int peer = 0; peer < world.size(); ++peer) {
    if (peer == world.rank()) continue;
    ForEachChunk(all.subspan(peer * mine.size(), mine.size()), options.chunk_bytes,
                 [&](int64_t number, absl::Span<std::byte> chunk) {
                   world.Receive(chunk, peer, Tag(Kind::kCopy, number), kNothing);
                 });
    ForEachChunk(mine, options.chunk_bytes, [&](int64_t number, absl::Span<const std::byte> chunk) {
      world.Send(chunk, peer, Tag(Kind::kCopy, number), kNothing);
      sent += chunk.size();
    });
  }
  return sent;
}

}  // namespace espalier
