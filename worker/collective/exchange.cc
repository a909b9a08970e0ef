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

const MpiMessages::Done kNothing = [] {};

// Small sums are cut finer, so that adding and sending overlap; every rank computes the same.
int64_t ChunkElements(int64_t elements, int ranks, const ExchangeOptions& options) {
  constexpr int64_t kSmallest = (256 << 10) / sizeof(float);
  const int64_t largest = std::max<int64_t>(1, options.chunk_bytes / sizeof(float));
  const int64_t piece = PieceOf(elements, 0, ranks).size();
  const int64_t chunk =
      std::clamp(ChunkCount(piece, options.depth), std::min(kSmallest, largest), largest);
  return ChunkCount(chunk, kWireBlock) * kWireBlock;
}

// Bounds the memory for parts where there are many ranks.
int64_t PartsDepth(int64_t chunk_bytes, int64_t chunks, int peers, int depth) {
  constexpr int64_t kPartsBytesMax = 256 << 20;
  const int64_t row_bytes = chunk_bytes * peers;
  const int64_t affordable =
      row_bytes == 0 ? depth : std::max<int64_t>(1, kPartsBytesMax / row_bytes);
  return std::min({static_cast<int64_t>(depth), chunks, affordable});
}

}  // namespace

AllReduce::AllReduce(MpiMessages& messages, const ExchangeOptions& options, ScratchMemory& scratch,
                     const Reduction& reduction)
    : messages_(messages),
      rank_(messages.rank()),
      ranks_(messages.size()),
      depth_(options.depth),
      reduction_(reduction),
      mine_(PieceOf(reduction.values.size(), rank_, ranks_)),
      chunk_elements_(ChunkElements(reduction.values.size(), ranks_, options)),
      chunk_bytes_(WireBytes(reduction.wire, chunk_elements_)),
      parts_depth_(
          PartsDepth(chunk_bytes_, ChunkCount(mine_.size(), chunk_elements_), ranks_ - 1, depth_)),
      next_send_(ranks_),
      parts_missing_(ChunkCount(mine_.size(), chunk_elements_), ranks_ - 1),
      sums_unsent_(parts_missing_),
      parts_(scratch.Get(parts_depth_ * (ranks_ - 1) * chunk_bytes_)) {}

Range AllReduce::Chunk(int rank, int64_t index) const {
  return ChunkOf(PieceOf(reduction_.values.size(), rank, ranks_), chunk_elements_, index);
}

absl::Span<float> AllReduce::Values(const Range& range) const {
  return reduction_.values.subspan(range.begin, range.size());
}

// Where the encoded form of a range is, between Encode and Decode.
absl::Span<std::byte> AllReduce::Encoded(const Range& range) const {
  return {reinterpret_cast<std::byte*>(Values(range).data()),
          static_cast<size_t>(WireBytes(reduction_.wire, range.size()))};
}

void AllReduce::Encode(const Range& range) {
  const bool residual = !reduction_.residual.empty();
  EncodeInPlace(
      reduction_.wire, Values(range),
      residual ? reduction_.residual.subspan(range.begin, range.size()) : absl::Span<float>());
}

void AllReduce::Decode(const Range& range) { DecodeInPlace(reduction_.wire, Values(range)); }

// Where the part of `chunk` that comes from `peer` is kept until all parts are there.
std::byte* AllReduce::Part(int64_t chunk, int peer) {
  const int column = peer < rank_ ? peer : peer - 1;
  return parts_ + ((chunk % parts_depth_) * (ranks_ - 1) + column) * chunk_bytes_;
}

void AllReduce::Start() {
  if (ranks_ == 1) return AddResidual(reduction_.values, reduction_.residual);
  for (int64_t chunk = 0; chunk < parts_depth_; ++chunk) ReceiveParts(chunk);
  for (int i = 0; i < depth_; ++i) {
    for (int shift = 1; shift < ranks_; ++shift) SendNext((rank_ + shift) % ranks_);
  }
}

// Sends the next chunk of the peer's piece. The sum of that chunk comes back to the same place, so
// its receive starts only when the send is over.
void AllReduce::SendNext(int peer) {
  const int64_t chunk = next_send_[peer];
  const Range range = Chunk(peer, chunk);
  if (range.size() <= 0) return;
  ++next_send_[peer];
  Encode(range);
  bytes_sent_ += static_cast<int64_t>(Encoded(range).size());
  messages_.Send(Encoded(range), peer, Tag(Kind::kPart, chunk), [this, peer, chunk] {
    ReceiveSum(peer, chunk);
    SendNext(peer);
  });
}

void AllReduce::ReceiveSum(int peer, int64_t chunk) {
  const Range range = Chunk(peer, chunk);
  messages_.Receive(Encoded(range), peer, Tag(Kind::kSum, chunk), [this, range] { Decode(range); });
}

void AllReduce::ReceiveParts(int64_t chunk) {
  const size_t bytes = Encoded(Chunk(rank_, chunk)).size();
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    messages_.Receive({Part(chunk, peer), bytes}, peer, Tag(Kind::kPart, chunk),
                      [this, chunk] { PartArrived(chunk); });
  }
}

void AllReduce::PartArrived(int64_t chunk) {
  if (--parts_missing_[chunk] > 0) return;
  SumAndSend(chunk);
  const int64_t next = chunk + parts_depth_;
  if (next < static_cast<int64_t>(parts_missing_.size())) ReceiveParts(next);
}

// This rank, too, keeps the sum as the others will decode it.
void AllReduce::SumAndSend(int64_t chunk) {
  const Range range = Chunk(rank_, chunk);
  float* sum = Values(range).data();
  std::vector<WirePart> parts;
  for (int rank = 0; rank < ranks_; ++rank) {
    const bool own = rank == rank_;
    parts.push_back({own ? reinterpret_cast<std::byte*>(sum) : Part(chunk, rank), !own});
  }
  SumInRankOrder(reduction_.wire, parts, sum, range.size());
  Encode(range);
  for (int shift = 1; shift < ranks_; ++shift) {
    bytes_sent_ += static_cast<int64_t>(Encoded(range).size());
    messages_.Send(Encoded(range), (rank_ + shift) % ranks_, Tag(Kind::kSum, chunk),
                   [this, chunk, range] {
                     if (--sums_unsent_[chunk] == 0) Decode(range);
                   });
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

int64_t StartBroadcast(MpiMessages& messages, const ExchangeOptions& options,
                       absl::Span<std::byte> bytes, int root) {
  // A root that sends to everyone itself has its line used once per peer; so large data goes from
  // rank to rank, chunk by chunk.
  constexpr size_t kChainFrom = 1 << 20;
  const bool chain = bytes.size() >= kChainFrom;
  const int size = messages.size();
  const int place = (messages.rank() - root + size) % size;  // 0: the root
  const auto rank_at = [root, size](int at) { return (root + at) % size; };
  const int from = rank_at(chain ? place - 1 + size : 0);
  const int first = place == 0 ? 1 : place + 1;
  const int last = place == 0 ? (chain ? std::min(1, size - 1) : size - 1)
                              : (chain ? std::min(place + 1, size - 1) : 0);
  int64_t sent = 0;
  ForEachChunk(bytes, options.chunk_bytes, [&](int64_t number, absl::Span<std::byte> chunk) {
    const int tag = Tag(Kind::kCopy, number);
    const auto pass_on = [&messages, rank_at, first, last, chunk, tag] {
      for (int at = first; at <= last; ++at) messages.Send(chunk, rank_at(at), tag, kNothing);
    };
    sent += static_cast<int64_t>(chunk.size()) * std::max(0, last - first + 1);
    if (place == 0) {
      pass_on();
    } else {
      messages.Receive(chunk, from, tag, pass_on);
    }
  });
  return sent;
}

int64_t StartAllGather(MpiMessages& messages, const ExchangeOptions& options,
                       absl::Span<const std::byte> mine, absl::Span<std::byte> all) {
  if (!mine.empty()) {
    std::memcpy(all.data() + messages.rank() * mine.size(), mine.data(), mine.size());
  }
  int64_t sent = 0;
  for (int peer = 0; peer < messages.size(); ++peer) {
    if (peer == messages.rank()) continue;
    ForEachChunk(all.subspan(peer * mine.size(), mine.size()), options.chunk_bytes,
                 [&](int64_t number, absl::Span<std::byte> chunk) {
                   messages.Receive(chunk, peer, Tag(Kind::kCopy, number), kNothing);
                 });
    ForEachChunk(mine, options.chunk_bytes, [&](int64_t number, absl::Span<const std::byte> chunk) {
      messages.Send(chunk, peer, Tag(Kind::kCopy, number), kNothing);
      sent += chunk.size();
    });
  }
  return sent;
}

}  // namespace espalier
