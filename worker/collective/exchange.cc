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
  return std::clamp(ChunkCount(piece, options.depth), std::min(kSmallest, largest), largest);
}

// Bounds the memory for parts where there are many ranks.
int64_t PartsDepth(int64_t chunk_elements, int64_t chunks, int peers, int depth) {
  constexpr int64_t kPartsBytesMax = 256 << 20;
  const int64_t row_bytes = chunk_elements * peers * static_cast<int64_t>(sizeof(float));
  const int64_t affordable =
      row_bytes == 0 ? depth : std::max<int64_t>(1, kPartsBytesMax / row_bytes);
  return std::min({static_cast<int64_t>(depth), chunks, affordable});
}

}  // namespace

AllReduce::AllReduce(MpiMessages& messages, const ExchangeOptions& options, ScratchMemory& scratch,
                     absl::Span<float> values)
    : messages_(messages),
      rank_(messages.rank()),
      ranks_(messages.size()),
      depth_(options.depth),
      values_(values),
      mine_(PieceOf(values.size(), rank_, ranks_)),
      chunk_elements_(ChunkElements(values.size(), ranks_, options)),
      parts_depth_(PartsDepth(chunk_elements_, ChunkCount(mine_.size(), chunk_elements_),
                              ranks_ - 1, depth_)),
      next_send_(ranks_),
      parts_missing_(ChunkCount(mine_.size(), chunk_elements_), ranks_ - 1),
      parts_(scratch.Get(parts_depth_ * (ranks_ - 1) * chunk_elements_)) {}

Range AllReduce::Chunk(int rank, int64_t index) const {
  return ChunkOf(PieceOf(values_.size(), rank, ranks_), chunk_elements_, index);
}

absl::Span<std::byte> AllReduce::Bytes(const Range& range) const {
  return {reinterpret_cast<std::byte*>(values_.data() + range.begin), range.size() * sizeof(float)};
}

// Where the part of `chunk` that comes from `peer` is kept until all parts are there.
float* AllReduce::Part(int64_t chunk, int peer) {
  const int column = peer < rank_ ? peer : peer - 1;
  return parts_ + ((chunk % parts_depth_) * (ranks_ - 1) + column) * chunk_elements_;
}

void AllReduce::Start() {
  if (ranks_ == 1) return;
  for (int64_t chunk = 0; chunk < parts_depth_; ++chunk) ReceiveParts(chunk);
  for (int shift = 1; shift < ranks_; ++shift) {
    for (int i = 0; i < depth_; ++i) SendNext((rank_ + shift) % ranks_);
  }
}

// Sends the next chunk of the peer's piece. The sum of that chunk comes back to the same place, so
// its receive starts only when the send is over.
void AllReduce::SendNext(int peer) {
  const int64_t chunk = next_send_[peer];
  const Range range = Chunk(peer, chunk);
  if (range.size() <= 0) return;
  ++next_send_[peer];
  bytes_sent_ += static_cast<int64_t>(Bytes(range).size());
  messages_.Send(Bytes(range), peer, Tag(Kind::kPart, chunk), [this, peer, chunk] {
    ReceiveSum(peer, chunk);
    SendNext(peer);
  });
}

void AllReduce::ReceiveSum(int peer, int64_t chunk) {
  messages_.Receive(Bytes(Chunk(peer, chunk)), peer, Tag(Kind::kSum, chunk), kNothing);
}

void AllReduce::ReceiveParts(int64_t chunk) {
  const size_t bytes = Bytes(Chunk(rank_, chunk)).size();
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    messages_.Receive({reinterpret_cast<std::byte*>(Part(chunk, peer)), bytes}, peer,
                      Tag(Kind::kPart, chunk), [this, chunk] { PartArrived(chunk); });
  }
}

void AllReduce::PartArrived(int64_t chunk) {
  if (--parts_missing_[chunk] > 0) return;
  SumAndSend(chunk);
  const int64_t next = chunk + parts_depth_;
  if (next < static_cast<int64_t>(parts_missing_.size())) ReceiveParts(next);
}

void AllReduce::SumAndSend(int64_t chunk) {
  const Range range = Chunk(rank_, chunk);
  float* sum = values_.data() + range.begin;
  std::vector<const float*> parts;
  for (int rank = 0; rank < ranks_; ++rank) {
    parts.push_back(rank == rank_ ? sum : Part(chunk, rank));
  }
  SumInRankOrder(parts, sum, range.size());
  for (int shift = 1; shift < ranks_; ++shift) {
    bytes_sent_ += static_cast<int64_t>(Bytes(range).size());
    messages_.Send(Bytes(range), (rank_ + shift) % ranks_, Tag(Kind::kSum, chunk), kNothing);
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
