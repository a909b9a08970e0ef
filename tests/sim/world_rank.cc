#include "tests/sim/world_rank.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier::sim {

void RankProcess::Begin() {
  if (dead_) return;
  begun_ = true;
  Attach();
  KeepTelling();
}

void RankProcess::Die() {
  if (dead_) return;
  dead_ = true;
  if (stream_) world_.wire_.CloseByWorker(*stream_);
  stream_.reset();
  world_.OnRankEnded();
}

void RankProcess::Freeze(absl::Duration time) {
  if (dead_ || frozen_) return;
  frozen_ = true;
  world_.scene_.timeline.After(time, [this] { frozen_ = false; });
}

void RankProcess::Cut() {
  if (stream_ && !dead_) world_.wire_.Cut(*stream_);
}

void RankProcess::Finish(Outcome outcome, const std::string& reason, absl::StatusCode code) {
  if (dead_ || finished_) return;
  outcome_ = outcome;
  finished_ =
      WorkerFinished{.outcome = outcome, .reason = reason, .next_step = world_.step_, .code = code};
  Say(finished_, Care::kKeep);
  // Waits for a stream to say it on, but not for ever.
  const absl::Duration wait = welcomed_ ? world_.scene_.chance.Milliseconds(30, 300)
                                        : world_.scene_.chance.Milliseconds(800, 1500);
  world_.scene_.timeline.After(wait, [this] { Die(); });
}

void RankProcess::AttachLater() {
  world_.scene_.timeline.After(world_.scene_.chance.Milliseconds(50, 1500), [this] { Attach(); });
}

void RankProcess::Attach() {
  if (dead_ || stream_) return;
  if (frozen_ || !world_.CoordinatorUp()) {
    AttachLater();
    return;
  }
  const WorldOptions& options = world_.options_;
  stream_ = world_.wire_.Open(this, options.nodes[static_cast<size_t>(rank_.value())]);
  hello_at_ = world_.scene_.timeline.now();
  WorkerAttached hello{.stream = *stream_,
                       .worker = {options.key.job, options.key.generation, rank_},
                       .world_size = static_cast<int32_t>(options.nodes.size()),
                       .node = options.nodes[static_cast<size_t>(rank_.value())],
                       .pid = 1000 + rank_.value()};
  if (!options.external_id.empty()) {
    if (!was_welcomed_) hello.worker = {JobId(), Generation(), rank_};
    hello.external_id = options.external_id;
    hello.external_spec = options.spec;
  }
  world_.wire_.Up(*stream_, hello, Care::kKeep);
}

template <typename Message>
void RankProcess::Say(std::optional<Message>& message, Care care) {
  if (!message || !stream_ || !welcomed_ || dead_) return;
  message->stream = *stream_;
  world_.wire_.Up(*stream_, *message, care);
}

bool RankProcess::OnWelcome(StreamId stream, const Welcome& welcome) {
  if (frozen_) return false;
  if (stream != stream_ || dead_) return true;
  was_welcomed_ = true;
  world_.options_.key = {welcome.worker.job, welcome.worker.generation};
  welcomed_ = true;
  if (!world_.least_) world_.least_ = welcome.least;
  lease_until_ = std::max(lease_until_, hello_at_ + world_.lease_);
  Take(welcome.directive);
  Say(ready_, Care::kKeep);
  Say(found_, Care::kKeep);
  Say(step_, Care::kKeep);
  Say(checkpoint_, Care::kKeep);
  Say(ack_, Care::kKeep);
  Say(finished_, Care::kKeep);
  if (!joined_) {
    joined_ = true;
    world_.TryJoin();
  }
  return true;
}

bool RankProcess::OnDirective(StreamId stream, const Directive& directive) {
  if (frozen_) return false;
  if (stream == stream_ && !dead_) Take(directive);
  return true;
}

bool RankProcess::OnRenewal(StreamId stream, int64_t beat) {
  if (frozen_) return false;
  if (stream != stream_ || dead_) return true;
  lease_until_ = std::max(lease_until_, absl::FromUnixNanos(beat) + world_.lease_);
  return true;
}

bool RankProcess::OnClosed(StreamId stream, const absl::Status& status) {
  if (frozen_) return false;
  if (stream != stream_ || dead_) return true;
  stream_.reset();
  welcomed_ = false;
  if (status.code() == absl::StatusCode::kFailedPrecondition) {
    world_.scene_.Trace(absl::StrCat("rank ", rank_.value(), " of ", world_.options_.key.job.text(),
                                     "/", world_.options_.key.generation.value(),
                                     " is fenced: ", status.message()));
    Die();
  } else {
    AttachLater();
  }
  return true;
}

void RankProcess::Take(const Directive& directive) {
  if (directive.number > directive_.number) directive_ = directive;
}

void RankProcess::SayFound(Step step) {
  found_ = WorkerFoundState{.step = step};
  Say(found_, Care::kKeep);
}

void RankProcess::SayReady(Step next_step) {
  ready_ = WorkerReady{.next_step = next_step, .device = "cpu"};
  Say(ready_, Care::kKeep);
}

void RankProcess::SayStep(const StepFigures& figures) {
  step_ = WorkerStepReported{.figures = figures};
  Say(step_, Care::kCareless);
}

void RankProcess::SayAck(Step next_step) {
  const int64_t number = world_.LeaderObeys();
  if (ack_ && ack_->number >= number) return;
  ack_ = DirectiveAcked{.number = number, .next_step = next_step};
  Say(ack_, Care::kKeep);
}

void RankProcess::SayCheckpoint(Step step) {
  // No two writings take exactly as long.
  const double spent = absl::ToDoubleSeconds(world_.scene_.timeline.now() - absl::UnixEpoch());
  checkpoint_ = WorkerCheckpointed{.checkpoint = {.step = step, .path = "disk", .seconds = spent}};
  Say(checkpoint_, Care::kKeep);
}

void RankProcess::KeepTelling() {
  if (dead_) return;
  if (!frozen_ && stream_ && welcomed_) {
    std::optional<WorkerHeartbeat> progress =
        WorkerHeartbeat{.counters = {.step = world_.step_,
                                     .phase = world_.phase_,
                                     .collective = world_.collective_,
                                     .work = world_.collective_ + (world_.stalled_since_ ? 0 : 1)},
                        .memory_bytes = 1 << 20,
                        .beat = absl::ToUnixNanos(world_.scene_.timeline.now())};
    Say(progress, Care::kCareless);
  }
  const double timeout = world_.options_.spec.health().failure_timeout_seconds();
  world_.scene_.timeline.After(absl::Seconds(timeout / 5), [this] { KeepTelling(); });
}

}  // namespace espalier::sim
