#include "worker/collective/mpi_collective.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/collective/communication_thread.h"

namespace espalier {
namespace {

class MpiCollectiveImpl final : public MpiCollective {
 public:
  MpiCollectiveImpl(const MpiOptions& options, Clock& clock)
      : thread_(std::make_shared<CommunicationThread>(options, clock)) {}
  ~MpiCollectiveImpl() override { thread_->Stop(); }

  absl::Status Run() {
    ASSIGN_OR_RETURN(world_, thread_->Start());
    return absl::OkStatus();
  }

  Rank rank() const override { return Rank(world_.rank); }
  int world_size() const override { return world_.size; }
  int links() const override { return world_.links; }

  Ticket StartAllReduce(const Reduction& reduction) override {
    return Ticket(thread_->Enqueue({.kind = Operation::Kind::kAllReduce, .reduction = reduction}));
  }
  absl::Status Wait(Ticket ticket) override { return thread_->Wait(ticket.value()); }
  absl::Status Broadcast(absl::Span<std::byte> bytes, Rank root) override {
    return thread_->Wait(thread_->Enqueue({.kind = Operation::Kind::kBroadcast,
                                           .bytes = bytes,
                                           .root = static_cast<int>(root.value())}));
  }
  absl::Status AllGather(absl::Span<const std::byte> mine, absl::Span<std::byte> all) override {
    ESPALIER_CHECK(all.size() == mine.size() * world_.size, "the sizes do not fit");
    return thread_->Wait(
        thread_->Enqueue({.kind = Operation::Kind::kAllGather, .bytes = all, .input = mine}));
  }
  void Abort(absl::Status reason) override { thread_->Abort(std::move(reason)); }
  CollectiveStats stats() const override { return thread_->stats(); }
  absl::Status Finish(absl::Duration timeout) override { return thread_->Finish(timeout); }

 private:
  const std::shared_ptr<CommunicationThread> thread_;
  CommunicationThread::World world_;
};

absl::Status Check(const MpiOptions& options) {
  if (options.chunk_bytes < 4 || options.chunk_bytes > (1 << 30)) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_bytes is ", options.chunk_bytes, "; allowed: 4 to 1073741824"));
  }
  if (options.depth < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("depth is ", options.depth, "; allowed: 1 and more"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<MpiCollective>> MpiCollective::Start(const MpiOptions& options,
                                                                    Clock& clock) {
  RETURN_IF_ERROR(Check(options));
  auto collective = std::make_unique<MpiCollectiveImpl>(options, clock);
  RETURN_IF_ERROR(collective->Run());
  return collective;
}

}  // namespace espalier
