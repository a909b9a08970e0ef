#include "coordinator/agent/agent.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "coordinator/agent/command_stream.h"
#include "coordinator/agent/device_trial.h"
#include "coordinator/agent/generations.h"
#include "coordinator/agent/rehearsal.h"
#include "coordinator/agent/warm_memory.h"

namespace espalier {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(2);
constexpr absl::Duration kLongestPauseRefused = absl::Minutes(1);
constexpr absl::Duration kIdleTurn = absl::Seconds(1);
constexpr absl::Duration kRunningTurn = absl::Milliseconds(100);
constexpr absl::Duration kEndingTurn = absl::Milliseconds(10);
// What a turn takes beyond it the machine has slept, which its workers do not count either.
constexpr absl::Duration kLongestTurn = absl::Seconds(10);
// So long a machine stays awake after a generation, which kept it so, for the next one of the job:
// two minutes and ten seconds of a lease that is waited out, and a minute of back-off at most.
constexpr absl::Duration kAwakeAfter = absl::Minutes(4);
// Without an answer for so long, the log says what stands in the way.
constexpr absl::Duration kPatience = absl::Seconds(5);

// A person has to mend it.
bool IsRefusal(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status) ||
         absl::IsNotFound(status) || absl::IsInvalidArgument(status) ||
         absl::IsUnimplemented(status);
}

// One agent for a state folder; held as long as the process lives.
absl::StatusOr<int> LockFolder(const std::string& folder) {
  const std::string path = folder + "/lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return absl::FailedPreconditionError(
      absl::StrCat("another espalier-agent runs with the state folder ", folder,
                   "; stop it, or give this one a folder of its own with --state-dir"));
}

// mpirun's own folder, symbolic links left alone: Debian's mpirun and orted are links of one place.
absl::StatusOr<std::string> OpenMpiFolder(const std::string& mpirun) {
  if (mpirun.find('/') != std::string::npos) return ParentPath(mpirun);
  const char* path = std::getenv("PATH");
  absl::string_view left = path == nullptr ? "/usr/bin:/bin" : path;
  while (!left.empty()) {
    const absl::string_view folder = left.substr(0, left.find(':'));
    left.remove_prefix(std::min(left.size(), folder.size() + 1));
    if (!folder.empty() && access(absl::StrCat(folder, "/", mpirun).c_str(), X_OK) == 0) {
      return std::string(folder);
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "there is no '", mpirun, "' in PATH; install Open MPI, or name its mpirun with --mpirun"));
}

class AgentProcess final : public Agent {
 public:
  AgentProcess(AgentOptions options, std::shared_ptr<grpc::Channel> channel, int lock,
               Generations generations, Clock& clock)
      : options_(std::move(options)),
        target_(options_.target),
        channel_(std::move(channel)),
        clock_(clock),
        lock_(lock),
        generations_(std::move(generations)),
        facts_(options_.facts, clock),
        rehearsal_({options_.facts.worker, options_.facts.state_dir + "/rehearsal"}),
        device_trial_({options_.facts.worker, options_.facts.state_dir + "/self-test"}),
        instance_(absl::StrCat(getpid(), ".", absl::ToUnixNanos(clock.Now()))),
        last_turn_(clock.Monotonic()) {}

  ~AgentProcess() override { close(lock_); }

  absl::Status Run() override {
    SplitMix64 random(static_cast<uint64_t>(getpid()), 0);
    absl::Duration pause = kFirstPause;
    while (!stopping_) {
      const absl::Status ended = OneStream();
      if (stopping_) break;
      if (IsRefusal(ended) && !ever_welcomed_ && generations_.empty()) return ended;
      if (ended.message() != last_error_) {
        LogWarning(absl::StrCat("not attached to espalierd: ", ended.message(),
                                IsRefusal(ended) ? "; trying again once a minute" : ""));
      }
      last_error_ = std::string(ended.message());
      pause = NextPause(pause, ended, welcomed_);
      // Jitter, so that the agents of a restarted coordinator do not come all at once.
      Rest(pause * (0.5 + random.Uniform()));
    }
    return absl::OkStatus();
  }

  // Seen within a turn.
  void Stop() override { stopping_ = true; }

 private:
  v1::AgentHello Hello() {
    v1::AgentHello hello;
    hello.set_node(options_.node);
    hello.set_instance(instance_);
    *hello.mutable_report() = Report();
    for (const GenerationKey& key : generations_.running()) *hello.add_running() = NameOf(key);
    return hello;
  }

  // Waits between two streams, while generations are looked after.
  void Rest(absl::Duration pause) {
    const absl::Duration until = clock_.Monotonic() + pause;
    while (!stopping_ && clock_.Monotonic() < until) {
      clock_.Sleep(std::min(Turn(), until - clock_.Monotonic()));
      LookAfter(nullptr);
    }
  }

  // An espalierd of this machine may have started only now.
  void TakeShortestWay() {
    ChannelTarget target = ByOwnSocket(options_.target);
    if (target.address == target_.address) return;
    absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = MakeChannel(target, clock_);
    if (!channel.ok()) return;  // the way it has will say what is wrong
    target_ = std::move(target);
    channel_ = *std::move(channel);
  }

  // One stream from its opening to its end; returns why it ended. The hello is made when there is a
  // connection: it says what is so now, the time of day too.
  absl::Status OneStream() {
    welcomed_ = false;
    explain_at_ = clock_.Monotonic() + kPatience;
    TakeShortestWay();
    while (!Connect(*channel_, Turn())) {
      LookAfter(nullptr);
      ExplainWhenLate();
      if (stopping_) return absl::CancelledError("stopped");
    }
    const std::unique_ptr<v1::AgentService::Stub> stub = v1::AgentService::NewStub(channel_);
    CommandStream stream(target_, *stub, Hello());
    while (!stream.over() && !stopping_) {
      for (const v1::AgentCommand& command : stream.Take(Turn())) Obey(command, stream);
      LookAfter(welcomed_ ? &stream : nullptr);
      if (!welcomed_) ExplainWhenLate();
    }
    if (stopping_) stream.Cancel();
    const absl::Status ended = stream.Finish();
    return ended.ok() ? absl::UnavailableError("espalierd closed the stream") : ended;
  }

  absl::Duration Turn() const {
    if (generations_.ending()) return kEndingTurn;
    if (!generations_.empty() || !welcomed_) return kRunningTurn;
    return kIdleTurn;
  }

  void ExplainWhenLate() {
    if (clock_.Monotonic() < explain_at_) return;
    explain_at_ = absl::InfiniteDuration();
    const absl::Status why = ExplainFailure(
        absl::UnavailableError(absl::StrCat("espalierd at ", target_.address, " does not answer")),
        target_, clock_);
    if (why.message() == last_error_) return;
    LogWarning(absl::StrCat("not attached to espalierd yet: ", why.message()));
    last_error_ = std::string(why.message());
  }

  void Obey(const v1::AgentCommand& command, CommandStream& stream) {
    switch (command.body_case()) {
      case v1::AgentCommand::kWelcome:
        if (!std::exchange(welcomed_, true)) LogInfo("attached to espalierd");
        ever_welcomed_ = true;
        last_error_.clear();
        facts_.NoteFolders(command.welcome());
        report_interval_ = std::max(absl::Milliseconds(100),
                                    absl::Seconds(command.welcome().report_interval_seconds()));
        report_at_ = clock_.Monotonic() + report_interval_;
        break;
      case v1::AgentCommand::kStart:
        StartDaemon(command.start(), stream);
        break;
      case v1::AgentCommand::kEnd:
        generations_.End(KeyOf(command.end().generation()));
        break;
      case v1::AgentCommand::kDrop:
        facts_.Drop(command.drop());
        break;
      case v1::AgentCommand::kRehearse:
        device_trial_.Stop();
        rehearsal_.Ask(command.rehearse(), clock_.Monotonic());
        break;
      case v1::AgentCommand::BODY_NOT_SET:
        break;
    }
  }

  void StartDaemon(const v1::StartDaemon& request, CommandStream& stream) {
    v1::AgentMessage answer;
    rehearsal_.Forget();  // two of them may not fit
    device_trial_.Stop();
    const absl::StatusOr<int64_t> pid = generations_.Start(request);
    if (pid.ok()) {
      answer.mutable_started()->set_exec_id(request.exec_id());
      answer.mutable_started()->set_pid(*pid);
    } else {
      LogWarning(absl::StrCat("not started: ", pid.status().message()));
      answer.mutable_exited()->set_exec_id(request.exec_id());
      answer.mutable_exited()->set_code(1);
      answer.mutable_exited()->set_error(std::string(pid.status().message()));
    }
    stream.Write(answer);
  }

  v1::NodeReport Report() {
    v1::NodeReport report = facts_.Report();
    if (about_to_sleep_) report.mutable_condition()->set_about_to_sleep(true);
    rehearsal_.AddTo(report);
    device_trial_.AddTo(report);
    return report;
  }

  // Who is about to sleep says so at once, and the machine waits, as long as the system lets it,
  // until jobs have left.
  void HeedSleep(bool attached, absl::Duration now) {
    if (options_.sleep == nullptr) return;
    const bool was = std::exchange(about_to_sleep_, options_.sleep->about_to_sleep());
    if (about_to_sleep_ != was) report_at_ = now;
    const bool told = was || !attached;
    if (about_to_sleep_ && told && (!attached || generations_.empty())) options_.sleep->Allow();
  }

  // Workers keep the machine awake; nobody does between one generation of a job and the next, and
  // who has waited for that to sleep does so at once.
  void StayAwake(absl::Duration now) {
    const bool runs = !generations_.empty();
    if (std::exchange(ran_, runs) && !runs && options_.keep_awake && !awake_.valid()) {
      awake_ = std::async(std::launch::async, options_.keep_awake);
    }
    if (runs) awake_until_ = now + kAwakeAfter;
    const bool over = awake_.valid() && (runs || now >= awake_until_);
    if (over && awake_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) awake_ = {};
  }

  // What is told while nobody listens is lost without harm: espalierd asks again.
  void LookAfter(CommandStream* stream) {
    const absl::Duration now = clock_.Monotonic();
    HeedSleep(stream != nullptr, now);
    alone_ += std::min(now - last_turn_, kLongestTurn);
    if (stream != nullptr) alone_ = absl::ZeroDuration();
    last_turn_ = now;
    generations_.EndOrphans(alone_);
    StayAwake(now);
    for (const v1::AgentMessage& news : generations_.Poll(now)) {
      if (stream != nullptr) stream->Write(news);
      if (news.has_gone()) report_at_ = now;  // what it has left in memory
    }
    if (rehearsal_.Poll(now)) report_at_ = now;
    const bool idle = generations_.empty() && !rehearsal_.running();
    if (device_trial_.Poll(idle, now)) report_at_ = now;
    if (stream == nullptr || now < report_at_) return;
    report_at_ = now + report_interval_;
    v1::AgentMessage message;
    *message.mutable_report() = Report();
    stream->Write(message);
  }

  const AgentOptions options_;
  ChannelTarget target_;
  std::shared_ptr<grpc::Channel> channel_;
  Clock& clock_;
  const int lock_;
  Generations generations_;
  NodeFacts facts_;
  RehearsalRunner rehearsal_;
  DeviceTrialRunner device_trial_;
  const std::string instance_;
  absl::Duration last_turn_;
  absl::Duration alone_;  // awake and without a welcome
  absl::Duration report_interval_ = absl::Seconds(5);
  absl::Duration report_at_;
  absl::Duration explain_at_;
  bool about_to_sleep_ = false;
  bool ran_ = false;  // a generation, when it was looked last
  absl::Duration awake_until_;
  std::future<absl::StatusOr<std::unique_ptr<KeepAwake>>> awake_;
  bool welcomed_ = false;  // on the stream at hand
  bool ever_welcomed_ = false;
  std::string last_error_;
  std::atomic<bool> stopping_ = false;
};

}  // namespace

absl::Duration NextPause(absl::Duration last, const absl::Status& ended, bool was_welcomed) {
  if (was_welcomed) return kFirstPause;
  return std::min(last * 2, IsRefusal(ended) ? kLongestPauseRefused : kLongestPause);
}

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(AgentOptions options, Clock& clock) {
  RETURN_IF_ERROR(MakeDurableDirectory(PosixFileSystem(), options.facts.state_dir));
  options.facts.node = options.node;
  ASSIGN_OR_RETURN(const std::string open_mpi, OpenMpiFolder(options.facts.mpirun));
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(options.target, clock));
  ASSIGN_OR_RETURN(const int lock, LockFolder(options.facts.state_dir));
  absl::StatusOr<Generations> generations =
      Generations::Open({.state_dir = options.facts.state_dir, .open_mpi_folder = open_mpi});
  if (!generations.ok()) {
    close(lock);
    return generations.status();
  }
  return std::make_unique<AgentProcess>(std::move(options), std::move(channel), lock,
                                        *std::move(generations), clock);
}

}  // namespace espalier
