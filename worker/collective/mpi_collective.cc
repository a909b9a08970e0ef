#include "worker/collective/mpi_collective.h"

#include <utility>

#include "absl/strings/str_cat.h"
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

  Ticket Start(const Operation& operation) override { return Ticket(thread_->Enqueue(operation)); }
  absl::Status Wait(Ticket ticket) override { return thread_->Wait(ticket.value()); }
  absl::Status Quiesce() override { return thread_->Quiesce(); }
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
  if (options.depth < 1 || options.depth > kChunkTags) {
    return absl::InvalidArgumentError(
        absl::StrCat("depth is ", options.depth, "; allowed: 1 to ", kChunkTags));
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
