#include "tests/sim/sim_coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/journal/record.h"
#include "coordinator/loop/messages.h"
#include "espalier/v1/agent.pb.h"
#include "tests/sim/describe.h"

namespace espalier::sim {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(250);
// Minutes by which a clock is corrected at most.
constexpr int64_t kClockJump = 600;

// What the service makes of an agent's message.
std::optional<Event> AgentEvent(StreamId stream, const v1::AgentMessage& message,
                                const std::string& serial) {
  if (message.has_report()) return AgentReported{.stream = stream, .report = message.report()};
  if (!message.has_hello()) return std::nullopt;
  const v1::AgentHello& hello = message.hello();
  return AgentAttached{.stream = stream,
                       .node = NodeName(hello.node()),
                       .report = hello.report(),
                       .instance = hello.instance(),
                       .certificate = serial,
                       .serial = serial};
}

std::string DescribeMessage(StreamId stream, const v1::AttachResponse& message) {
  if (message.has_renewal()) return Describe(RenewLease{stream, message.renewal().beat()});
  if (message.has_directive()) {
    return Describe(SendDirective{stream, FromProto(message.directive())});
  }
  const v1::Welcome& sent = message.welcome();
  espalier::Welcome welcome;  // member by member: GCC 12 takes a list of values for uninitialised
  welcome.stream = stream;
  welcome.worker = {JobId(sent.job_id()), Generation(sent.generation()), Rank(0)};
  welcome.directive = FromProto(sent.directive());
  welcome.least = Step(sent.least_step());
  welcome.least_held_by = sent.least_held_by();
  welcome.keep_warm = !sent.warm_folder().empty();
  return Describe(welcome);
}

}  // namespace

SimCoordinator::SimCoordinator(Parts parts)
    : parts_(std::move(parts)),
      clock_(parts_.scene, [this](absl::Duration time) { Pass(time); }),
      disk_(parts_.scene,
            {.write = [this] { return Write(); },
             .writing = [this](const auto& effects) { inspector_.OnWriting(effects); },
             .written = [this] { inspector_.OnWritten(); }}),
      launcher_(parts_.scene, parts_.wire, parts_.worlds),
      streams_(parts_.scene, parts_.wire),
      inspector_(parts_.scene, disk_.contents(), parts_.worlds),
      requests_(parts_.scene) {
  UseParts();
}

void SimCoordinator::UseParts() {
  streams_.Use({.sending =
                    [this](StreamId stream, const v1::AttachResponse& message) {
                      if (!Lives(1500)) return false;
                      parts_.scene.Trace(DescribeMessage(stream, message));
                      inspector_.OnSend(stream, message);
                      return true;
                    },
                .commanding =
                    [this](StreamId stream, const v1::AgentCommand& command) {
                      if (!Lives(1500)) return false;
                      const v1::DropWarm& drop = command.drop();
                      parts_.scene.Trace(
                          command.has_rehearse()
                              ? Describe(Rehearse{stream, JobId(command.rehearse().job_id()), {}})
                              : Describe(DropMemory{stream, JobId(drop.job_id()), drop.history(),
                                                    Step(drop.step())}));
                      return true;
                    },
                .closing =
                    [this](StreamId stream, const absl::Status& status) {
                      if (!Lives(1500)) return false;
                      parts_.scene.Trace(Describe(CloseStream{stream, status}));
                      return true;
                    }});
  launcher_.Use({.world = WorldHooks(),
                 .launching =
                     [this](const LaunchRequest& request) {
                       if (!Lives(40)) return false;
                       parts_.scene.Trace(Describe(Launch{request.key, request.nodes}));
                       inspector_.OnLaunch({request.key, request.nodes});
                       launched_ = true;
                       return true;
                     },
                 .killing =
                     [this](const GenerationKey& key) {
                       if (!Lives(40)) return false;
                       parts_.scene.Trace(Describe(Kill{key}));
                       inspector_.OnKill({key});
                       return true;
                     }});
}

void SimCoordinator::Start() {
  ++life_;
  up_ = true;
  dead_ = false;
  events_ = 1;
  tick_at_ = absl::ZeroDuration();
  launched_ = false;
  listening_since_ = parts_.scene.timeline.now();
  inspector_.OnRestart(clock_.Now());
  parts_.scene.Trace("coordinator starts");
  inbox_ = std::make_unique<Inbox>(Inbox::Options{});
  loop_ = std::make_unique<Loop>(
      LoopParts{.clock = &clock_,
                .journal = &disk_,
                .launcher = &launcher_,
                .streams = &streams_,
                .agents = &streams_,
                .inbox = inbox_.get(),
                .observer = this,
                .files = &files_},
      LoopOptions{.cluster = parts_.cluster, .state_dir = "state", .tick = kTick});
  VersionsFound found;
  found.versions.set_open_mpi("4.1.4");
  inbox_->Put(AgentInput{found, nullptr});
  turning_ = true;
  const absl::Status started = loop_->Start();
  turning_ = false;
  // Somebody starts it again.
  if (absl::IsResourceExhausted(started)) Crash();
  if (dead_) return Bury();
  if (!started.ok()) parts_.scene.Break(absl::StrCat("cannot start: ", started.message()));
  Turn();
  KeepTicking(life_);
}

void SimCoordinator::KeepTicking(int64_t life) {
  const absl::Duration wait = clock_.TimeFor(kTick) + absl::Microseconds(1);
  parts_.scene.timeline.After(wait, [this, life] {
    if (!up_ || life != life_) return;
    Turn();
    if (!up_ || life != life_) return;
    if (!turning_) inspector_.OnLooked(listening_since_, kTick);
    KeepTicking(life);
  });
}

void SimCoordinator::TurnSoon() {
  if (std::exchange(turn_planned_, true)) return;
  parts_.scene.timeline.After(parts_.scene.chance.Milliseconds(0, 3), [this] {
    turn_planned_ = false;
    Turn();
  });
}

void SimCoordinator::Turn() {
  if (Dead() || turning_ || !parts_.scene.broken.empty()) return;
  turning_ = true;
  requests_.OnTurn();
  events_ = static_cast<int64_t>(inbox_->depth()) + (std::exchange(launched_, false) ? 1 : 0);
  if (const absl::Duration now = clock_.Monotonic(); now >= tick_at_) {
    ++events_;
    tick_at_ = now + kTick;
  }
  inbox_->Wake();
  loop_->Turn();
  turning_ = false;
  if (dead_) return Bury();
  requests_.OnTurned();
  if (launched_ || inbox_->depth() > 0) TurnSoon();
}

void SimCoordinator::Pass(absl::Duration time) {
  // Shared: whoever dies meanwhile returns before it is over.
  const auto over = std::make_shared<bool>(false);
  parts_.scene.timeline.After(time, [over] { *over = true; });
  while (!*over && !dead_ && parts_.scene.broken.empty() && parts_.scene.timeline.RunNext()) {
  }
  listening_since_ = parts_.scene.timeline.now();
}

void SimCoordinator::Suspend(absl::Duration time) {
  if (Dead() || turning_) return;
  parts_.scene.Trace("coordinator sleeps");
  turning_ = suspended_ = true;
  if (time > absl::Seconds(20)) parts_.wire.CutAll();
  const absl::Time begin = parts_.scene.timeline.now();
  Pass(time);
  if (parts_.scene.chance.OneIn(2)) clock_.Skip(parts_.scene.timeline.now() - begin);
  turning_ = suspended_ = false;
  if (dead_) return Bury();
  parts_.scene.Trace("coordinator wakes up");
  Turn();
}

bool SimCoordinator::Lives(uint64_t one_in) {
  if (!Dead() && parts_.scene.Fault(one_in)) Crash();
  return !Dead();
}

bool SimCoordinator::Write() {
  if (!Lives(1500)) return false;
  if (parts_.scene.chance.OneIn(60)) {
    parts_.scene.Trace("coordinator waits for its disk");
    Pass(parts_.scene.chance.Milliseconds(100, 8000));
  }
  return !Dead();
}

void SimCoordinator::Crash() {
  if (!up_) return;
  up_ = false;
  dead_ = true;
  Scene& scene = parts_.scene;
  scene.Trace("coordinator crashes");
  parts_.wire.CoordinatorDied();
  launcher_.Die();
  streams_.Die();
  requests_.OnCrash();
  if (scene.Fault(4)) {
    clock_.Correct(absl::Minutes(scene.chance.Between(-kClockJump, kClockJump)));
  }
  const absl::Duration away = scene.chance.OneIn(4) ? scene.chance.Milliseconds(2000, 20000)
                                                    : scene.chance.Milliseconds(50, 1000);
  scene.timeline.After(away, [this] { Start(); });
  if (!turning_) Bury();
}

void SimCoordinator::Bury() {
  loop_.reset();
  inbox_.reset();
  unread_.clear();
  state_ = nullptr;
}

const ClusterState& SimCoordinator::state() const {
  static const ClusterState& none = *new ClusterState;
  return state_ == nullptr ? none : *state_;
}

void SimCoordinator::Hear(StreamId stream, Wire::Speaker speaker, const std::string* bytes) {
  if (Dead()) return;
  Unread& unread = unread_[stream];
  unread.speaker = speaker;
  if (bytes == nullptr) {
    unread.gone = true;
  } else {
    unread.messages.push_back(*bytes);
  }
  if (!unread.in_inbox) ReadOn(stream);
}

void SimCoordinator::ReadOn(StreamId stream) {
  const auto found = unread_.find(stream);
  if (found == unread_.end()) return;
  Unread& unread = found->second;
  unread.in_inbox = false;
  if (!unread.messages.empty()) {
    const std::string bytes = std::move(unread.messages.front());
    unread.messages.pop_front();
    unread.in_inbox = true;
    Put(InputOf(stream, unread.speaker, bytes));
  } else if (unread.gone) {
    const bool agent = unread.speaker == Wire::Speaker::kAgent;
    unread_.erase(found);
    streams_.Gone(stream);
    parts_.scene.Trace(agent ? Describe(AgentDetached{stream}) : Describe(WorkerDetached{stream}));
    if (agent) return Put(AgentInput{AgentDetached{stream}, nullptr});
    Put(StreamClosed{stream});
  }
}

Input SimCoordinator::InputOf(StreamId stream, Wire::Speaker speaker, const std::string& bytes) {
  const auto read_on = [this, stream, life = life_] {
    if (life == life_) ReadOn(stream);
  };
  std::optional<Event> event;
  Input input;
  if (speaker == Wire::Speaker::kAgent) {
    v1::AgentMessage message;
    message.ParseFromString(bytes);
    event = AgentEvent(stream, message, parts_.wire.SerialOf(stream));
    input = AgentInput{*event, read_on};
  } else {
    v1::AttachRequest message;
    message.ParseFromString(bytes);
    event = WorkerEvent(stream, message);
    input = StreamMessage{stream, std::move(message), read_on};
  }
  if (const std::string text = Describe(*event); !text.empty()) parts_.scene.Trace(text);
  return input;
}

void SimCoordinator::Put(Input input) {
  if (Dead()) return;
  inbox_->Put(std::move(input));
  if (!turning_) TurnSoon();
}

bool SimCoordinator::Ask(const OperatorRequest& request, Requests::Answered answered) {
  if (Dead() || suspended_) return false;
  Put(requests_.Ask(request, std::move(answered), [this](const auto& check) {
    if (Lives(1500)) check(disk_.contents(), inspector_.batched());
  }));
  return true;
}

void SimCoordinator::Publish(const Publication& publication) {
  if (dead_) return;
  const bool held = parts_.scene.broken.empty();
  inspector_.OnPublished(publication.state, events_);
  if (held && !parts_.scene.broken.empty()) {
    for (const std::string& line : Describe(publication.state)) parts_.scene.Trace(line);
  }
  state_ = &publication.state;
}

World::Hooks SimCoordinator::WorldHooks() {
  return {.agreed = [this](const World& world) { inspector_.OnAgreed(world); },
          .beginning = [this](const World& world) { inspector_.OnBegin(world); },
          .committing = [this](const World& world) { inspector_.OnCommit(world); },
          .publishing = [this](const World& world,
                               size_t rank) { inspector_.OnCheckpoint(world, rank); },
          .ended =
              [this](const World& world) {
                if (world.options().external_id.empty()) launcher_.OnEnded(world);
              },
          .coordinator_up = [this] { return listens(); }};
}

}  // namespace espalier::sim
