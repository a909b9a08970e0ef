#include "tests/sim/world_rank.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "coordinator/journal/record.h"

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
  v1::Finished finished;
  finished.set_reason(reason);
  finished.set_code(static_cast<int32_t>(code));
  Leave(outcome, std::move(finished));
}

void RankProcess::GiveUp(const std::vector<Rank>& silent) {
  v1::Finished finished;
  finished.set_reason("a peer did not answer");
  for (const Rank rank : silent) finished.add_silent_ranks(static_cast<int32_t>(rank.value()));
  Leave(Outcome::kLost, std::move(finished));
}

void RankProcess::Leave(Outcome outcome, v1::Finished finished) {
  if (dead_ || finished_) return;
  outcome_ = outcome;
  finished.set_outcome(static_cast<v1::Outcome>(outcome));
  finished.set_next_step(world_.step_.value());
  *finished_.emplace().mutable_finished() = std::move(finished);
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
  stream_ = world_.wire_.Open(this, node());
  hello_at_ = world_.scene_.timeline.now();
  v1::AttachRequest message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_rank(static_cast<int32_t>(rank_.value()));
  hello.set_world_size(static_cast<int32_t>(options.nodes.size()));
  hello.set_node(node().text());
  hello.set_pid(1000 + rank_.value());
  if (options.external_id.empty() || was_welcomed_) {
    hello.set_job_id(options.key.job.text());
    hello.set_generation(options.key.generation.value());
  }
  if (!options.external_id.empty()) {
    hello.set_external_id(options.external_id);
    *hello.mutable_external_spec() = options.spec;
  }
  Send(message, Care::kKeep);
}

void RankProcess::Send(const v1::AttachRequest& message, Care care) {
  if (!world_.wire_.Mute(node())) said_at_ = world_.scene_.timeline.now();
  world_.wire_.Up(*stream_, message, care);
}

void RankProcess::Say(const std::optional<v1::AttachRequest>& message, Care care) {
  if (message && stream_ && welcomed_ && !dead_) Send(*message, care);
}

bool RankProcess::OnMessage(StreamId stream, const std::string& bytes) {
  if (frozen_) return false;
  if (stream != stream_ || dead_) return true;
  v1::AttachResponse message;
  message.ParseFromString(bytes);
  if (message.has_welcome()) OnWelcome(message.welcome());
  if (message.has_directive()) Take(message.directive());
  if (message.has_renewal()) {
    const absl::Time sent = absl::FromUnixNanos(message.renewal().beat());
    lease_until_ = std::max(lease_until_, sent + ByOwnClock(lease_));
  }
  return true;
}

void RankProcess::OnWelcome(const v1::Welcome& welcome) {
  const bool first = !std::exchange(was_welcomed_, true);
  if (first && !welcome.warm_folder().empty()) history_ = welcome.history();
  world_.options_.key = {JobId(welcome.job_id()), Generation(welcome.generation())};
  welcomed_ = true;
  if (!world_.least_) world_.least_ = Step(welcome.least_step());
  lease_ = absl::Seconds(welcome.lease_seconds());
  lease_until_ = std::max(lease_until_, hello_at_ + ByOwnClock(lease_));
  Take(welcome.directive());
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

void RankProcess::Take(const v1::Directive& directive) {
  if (directive.number() > directive_.number) directive_ = FromProto(directive);
}

void RankProcess::SayFound(Step step) {
  ESPALIER_CHECK(!finished_, "a rank that left says no more");
  found_.emplace().mutable_found()->set_step(step.value());
  Say(found_, Care::kKeep);
}

void RankProcess::SayReady(Step next_step) {
  ESPALIER_CHECK(!finished_, "a rank that left says no more");
  v1::Ready& ready = *ready_.emplace().mutable_ready();
  ready.set_next_step(next_step.value());
  ready.set_device("cpu");
  Say(ready_, Care::kKeep);
}

void RankProcess::SayStep(const StepFigures& figures) {
  ESPALIER_CHECK(!finished_, "a rank that left says no more");
  v1::StepReport& report = *step_.emplace().mutable_step();
  report.set_step(figures.step.value());
  report.set_loss(figures.loss);
  report.set_tokens(figures.tokens);
  report.set_shard(figures.shard);
  report.set_step_seconds(figures.step_seconds);
  report.set_compute_seconds(figures.own_seconds);
  Say(step_, Care::kCareless);
}

void RankProcess::SayAck(Step next_step) {
  const int64_t number = world_.LeaderObeys();
  if (ack_ && ack_->ack().number() >= number) return;
  v1::DirectiveAck& ack = *ack_.emplace().mutable_ack();
  ack.set_number(number);
  ack.set_next_step(next_step.value());
  Say(ack_, Care::kKeep);
}

void RankProcess::SayCheckpoint(Step step, const std::string& error) {
  v1::CheckpointReport& report = *checkpoint_.emplace().mutable_checkpoint();
  report.set_step(step.value());
  report.set_path("disk");
  report.set_error(error);
  // No two writings take exactly as long.
  report.set_seconds(absl::ToDoubleSeconds(world_.scene_.timeline.now() - absl::UnixEpoch()));
  Say(checkpoint_, Care::kKeep);
}

void RankProcess::KeepTelling() {
  if (dead_) return;
  if (!frozen_ && stream_ && welcomed_) {
    v1::AttachRequest message;
    v1::Progress& progress = *message.mutable_progress();
    progress.set_step(world_.step_.value());
    progress.set_phase(static_cast<v1::Phase>(world_.phase_));
    progress.set_collective(world_.collective_);
    progress.set_work(world_.collective_ + (world_.stalled_since_ ? 0 : 1));
    progress.set_memory_bytes(1 << 20);
    progress.set_beat(absl::ToUnixNanos(world_.scene_.timeline.now()));
    Say(message, Care::kCareless);
  }
  const double timeout = world_.options_.spec.health().failure_timeout_seconds();
  world_.scene_.timeline.After(ByOwnClock(absl::Seconds(timeout / 5)), [this] { KeepTelling(); });
}

}  // namespace espalier::sim
