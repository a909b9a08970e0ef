#include "worker/collective/exchange.h"

namespace espalier {
namespace {

bool Sums(const Operation& operation) {
  return operation.kind == Operation::Kind::kAllReduce ||
         operation.kind == Operation::Kind::kReduceScatter;
}

// What is small goes straight to everyone, what is large from rank to rank; a sum's chunks as they
// are added up.
AllGather::Route RouteOf(const Operation& operation, const Layout& layout) {
  constexpr int64_t kRingFrom = 1 << 20;
  return Sums(operation) || layout.size_bytes() < kRingFrom ? AllGather::Route::kDirect
                                                            : AllGather::Route::kRing;
}

}  // namespace

Exchange::Exchange(Messages& messages, const ExchangeOptions& options, ScratchMemory& scratch,
                   const Operation& operation, int64_t number)
    : operation_(operation),
      layout_(operation, options, messages.rank(), messages.size()),
      announcements_(messages, operation, layout_, number),
      gather_(messages, layout_, options.depth, RouteOf(operation, layout_)) {
  if (!Sums(operation)) return;
  scatter_.emplace(
      messages, layout_, options.depth, scratch,
      ReduceScatter::Events{.summed = [this](int64_t chunk) { Summed(chunk); },
                            .sent = [this](int owner, int64_t chunk) { Sent(owner, chunk); }});
}

void Exchange::Start() {
  const Reduction& reduction = operation_.reduction;
  if (layout_.ranks() == 1) return AddResidual(reduction.values, reduction.residual);
  announcements_.Exchange();
  scatter_ ? scatter_->Start() : gather_.Start();
}

// The owner, too, keeps the sum as the others decode it, or would.
void Exchange::Summed(int64_t chunk) {
  const Range range = layout_.Chunk(layout_.rank(), chunk);
  layout_.Encode(range);
  if (operation_.kind == Operation::Kind::kAllReduce) {
    gather_.Send(chunk);
  } else {
    layout_.Decode(range);
  }
}

// A sum comes back to the place that its addend left.
void Exchange::Sent(int owner, int64_t chunk) {
  if (operation_.kind == Operation::Kind::kAllReduce) gather_.Receive(owner, chunk);
}

}  // namespace espalier
