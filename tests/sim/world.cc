#include "tests/sim/world.h"

#include <algorithm>
#include <utility>

namespace espalier::sim {
namespace {

// A world that nobody wants any more ends itself after so long.
constexpr absl::Duration kLongestHold = absl::Minutes(30);

}  // namespace

World::World(Scene& scene, Wire& wire, const WorldOptions& options, Hooks hooks)
    : RankWorld(scene, wire, options), hooks_(std::move(hooks)), unharmed_(!scene.faults) {
  keeps_.resize(options_.nodes.size());
  for (size_t i = 0; i < options_.nodes.size(); ++i) {
    ranks_.push_back(std::make_unique<RankProcess>(static_cast<RankWorld&>(*this),
                                                   Rank(static_cast<int64_t>(i))));
  }
}

World::~World() = default;

void World::Start() {
  for (auto& rank : ranks_) {
    // Never comes up; a person would notice.
    if (options_.external_id.empty() && scene_.Fault(80)) continue;
    scene_.timeline.After(scene_.chance.Milliseconds(20, 400), [&rank] { rank->Begin(); });
  }
}

void World::KillAll() {
  for (auto& rank : ranks_) rank->Die();
}

std::vector<NodeName> World::KillSome(const std::function<bool(const NodeName&)>& reached) {
  orphaned_ = true;
  for (size_t i = 0; i < size(); ++i) {
    if (reached(options_.nodes[i])) ranks_[i]->Die();
  }
  return LivingNodes();
}

std::vector<NodeName> World::LivingNodes() const {
  std::vector<NodeName> nodes;
  for (size_t i = 0; i < size(); ++i) {
    if (!ranks_[i]->dead()) nodes.push_back(options_.nodes[i]);
  }
  return nodes;
}

absl::Time World::may_train_until() const {
  const RankProcess& leader = *ranks_.front();
  // It begins with all its ranks, each of which is welcomed first.
  const bool begins = std::none_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    return rank->lease_until() == absl::InfinitePast();
  });
  return !begins || leader.dead() || leader.finished() ? absl::InfinitePast()
                                                       : leader.lease_until();
}

absl::Time World::SilentSince() const {
  absl::Time since = absl::InfiniteFuture();
  for (const auto& rank : ranks_) {
    if (!rank->finished()) since = std::min(since, rank->said_at());
  }
  return since;
}

void World::CrashRank(size_t rank) { ranks_[rank]->Die(); }

void World::FreezeRank(size_t rank, absl::Duration time) { ranks_[rank]->Freeze(time); }

void World::CutRank(size_t rank) { ranks_[rank]->Cut(); }

void World::FailRank(size_t rank, absl::StatusCode code) {
  if (stage_ != Stage::kTraining || !ranks_[rank]->moves()) return;
  scene_.failures[job()].push_back(
      {.code = code, .step = step_, .nodes = {options_.nodes[rank]}, .everywhere = size() == 1});
  ranks_[rank]->Finish(Outcome::kFailed, "an error of its own", code);
}

void World::FailEverywhere(absl::StatusCode code) {
  if (stage_ != Stage::kTraining || !AllCanMove()) return;
  stage_ = Stage::kLeaving;
  scene_.failures[job()].push_back(
      {.code = code, .step = step_, .nodes = options_.nodes, .everywhere = true});
  for (auto& rank : ranks_) rank->Finish(Outcome::kFailed, "an error of all", code);
}

bool World::AllCanMove() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->moves(); });
}

std::vector<Rank> World::SilentTo(size_t rank) const {
  std::vector<Rank> silent;
  for (size_t i = 0; i < size(); ++i) {
    const bool heard = ranks_[i]->moves() && !scene_.Apart(options_.nodes[rank], options_.nodes[i]);
    if (i != rank && !heard) silent.push_back(Rank(static_cast<int64_t>(i)));
  }
  return silent;
}

bool World::AllReachEachOther() const {
  const std::vector<NodeName>& nodes = options_.nodes;
  return std::none_of(nodes.begin(), nodes.end(), [&](const NodeName& a) {
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](const NodeName& b) { return scene_.Apart(a, b); });
  });
}

void World::After(absl::Duration delay, void (World::*next)()) {
  scene_.timeline.After(delay, [this, next] {
    if (!over_ && stage_ != Stage::kLeaving) WhenAllMove(next);
  });
}

void World::WhenAllMove(void (World::*next)()) {
  if (AllCanMove() && AllReachEachOther()) {
    stalled_since_.reset();
    (this->*next)();
    return;
  }
  if (!stalled_since_) stalled_since_ = scene_.timeline.now();
  const double timeout = options_.spec.health().failure_timeout_seconds();
  if (scene_.timeline.now() - *stalled_since_ > absl::Seconds(timeout)) {
    GiveUp();
    return;
  }
  After(absl::Milliseconds(100), next);
}

void World::TryJoin() {
  if (stage_ != Stage::kJoining || over_) return;
  const bool all =
      std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->joined(); });
  if (!all || !AllReachEachOther() || scene_.Fault(60)) return;  // hangs in MPI_Init
  stage_ = Stage::kTraining;
  After(scene_.chance.Milliseconds(50, 600), &World::Agree);
}

// Of a node where what a job needs is not there.
bool World::StartsInVain() {
  for (size_t i = 0; i < ranks_.size() && options_.external_id.empty(); ++i) {
    const auto barren = scene_.barren_until.find(options_.nodes[i]);
    if (barren == scene_.barren_until.end() || scene_.timeline.now() > barren->second) continue;
    unharmed_ = false;
    const size_t known = scene_.failures[job()].size();
    FailRank(i, absl::StatusCode::kNotFound);
    if (scene_.failures[job()].size() > known) scene_.failures[job()].back().barren = true;
    return true;
  }
  return false;
}

void World::Agree() {
  if (over_ || stage_ != Stage::kTraining || StartsInVain()) return;
  Step newest, in_memory;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (scene_.Fault(40)) {  // the newest one there turns out to be damaged
      DiskOf(i) = Step(DiskOf(i).value() / 2);
      scene_.damaged.insert(job());
    }
    TakeMemory(i);
    newest = std::max({newest, DiskOf(i), MemoryOf(i)});
    in_memory = std::max(in_memory, MemoryOf(i));
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {  // a disk that is older is not read
    if (DiskOf(i) >= in_memory) ranks_[i]->SayFound(DiskOf(i));
  }
  if (newest < least_.value_or(Step(0))) {
    if (scene_.damaged.count(job()) != 0) unharmed_ = false;
    Leave(Outcome::kLost, "no rank holds what was published");
    return;
  }
  step_ = newest;
  hooks_.agreed(*this);
  Remember(step_);
  phase_ = Phase::kBoundary;
  for (auto& rank : ranks_) rank->SayReady(step_);
  WhenAllMove(&World::Boundary);
}

// Rank 0 does, and the others wait for it.
bool World::HoldsForLease() {
  const absl::Duration over = scene_.timeline.now() - ranks_.front()->lease_until();
  if (over <= absl::ZeroDuration()) return false;
  phase_ = Phase::kPaused;
  if (over > kLongestHold) {
    GiveUp();
  } else {
    After(scene_.chance.Milliseconds(100, 400), &World::Boundary);
  }
  return true;
}

void World::Boundary() {
  if (HoldsForLease()) return;
  const Directive directive = ranks_.front()->directive();
  ++collective_;
  NoteBeside();
  for (auto& rank : ranks_) rank->SayAck(step_);
  if (directive.checkpoint_request > obeyed_checkpoint_) {
    obeyed_checkpoint_ = directive.checkpoint_request;
    return directive.run_state == RunState::kRun ? SaveBeside() : Save(&World::Boundary);
  }
  // What comes next is for good.
  const bool ends = directive.run_state == RunState::kStop || step_.value() >= total_steps();
  if (beside_ && ends) return Save(&World::Boundary);
  switch (directive.run_state) {
    case RunState::kPause:
      phase_ = Phase::kPaused;
      After(scene_.chance.Milliseconds(100, 400), &World::Boundary);
      return;
    case RunState::kStop:
      if (directive.checkpoint_before_stop) {
        Save(&World::LeaveStopped);
      } else {
        Leave(Outcome::kStopped, "as asked");
      }
      return;
    case RunState::kRun:
      break;
  }
  if (step_.value() >= total_steps()) {
    Save(&World::LeaveCompleted);
    return;
  }
  Adopt(directive.plan);
  hooks_.beginning(*this);
  phase_ = Phase::kExchange;
  After(scene_.chance.Milliseconds(50, 300), &World::Commit);
}

// As the worker does, at the boundary: a plan holds until a newer one begins.
void World::Adopt(const ShardPlan& plan) {
  if (plan.number > plan_.number && step_ >= plan.from_step) plan_ = plan;
}

// By the pace of the node, with some noise; now and then a step is slow.
double World::OwnSeconds(size_t rank) {
  const auto pace = scene_.paces.find(options_.nodes[rank]);
  const double seconds = pace == scene_.paces.end() ? 0.01 : pace->second;
  const double noise = static_cast<double>(scene_.chance.Between(97, 103)) / 100;
  const double odd = scene_.chance.OneIn(50) ? 10 : 1;
  return (0.02 + seconds * plan_.sequences[rank]) * noise * odd;
}

void World::Commit() {
  hooks_.committing(*this);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i]->SayStep({.step = step_,
                        .loss = 5.0 / (1.0 + static_cast<double>(step_.value())),
                        .tokens = 1024,
                        .shard = plan_.sequences[i],
                        .step_seconds = 0.2,
                        .own_seconds = OwnSeconds(i)});
  }
  step_ = step_.next();
  scene_.committed[job()] = std::max(scene_.committed[job()], step_);
  Remember(step_);
  collective_ += 3;
  const int64_t every = options_.spec.checkpoint().every_steps();
  if (every > 0 && step_.value() % every == 0) {
    SaveBeside();
  } else {
    Boundary();
  }
}

void World::Leave(Outcome outcome, const std::string& reason) {
  stage_ = Stage::kLeaving;
  for (auto& rank : ranks_) rank->Finish(outcome, reason);
}

void World::GiveUp() {
  stage_ = Stage::kLeaving;
  std::vector<std::vector<Rank>> silent;
  for (size_t i = 0; i < size(); ++i) silent.push_back(SilentTo(i));
  for (size_t i = 0; i < size(); ++i) {
    if (ranks_[i]->moves()) ranks_[i]->GiveUp(silent[i]);
  }
}

void World::OnRankEnded() {
  if (over_) return;
  bool all = true;
  bool abnormal = false;
  for (size_t i = 0; i < size(); ++i) {
    if (ranks_[i]->dead()) LetGoOfMemory(i);
  }
  for (const auto& rank : ranks_) {
    all = all && rank->dead();
    const bool well =
        rank->outcome() == Outcome::kStopped || rank->outcome() == Outcome::kCompleted;
    abnormal = abnormal || (rank->dead() && !well);
  }
  if (all) {
    over_ = true;
    scene_.timeline.After(scene_.chance.Milliseconds(5, 100), [this] { hooks_.ended(*this); });
  } else if (abnormal && !orphaned_) {
    scene_.timeline.After(scene_.chance.Milliseconds(100, 1000), [this] { KillAll(); });
  }
}

}  // namespace espalier::sim
