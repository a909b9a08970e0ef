#include "worker/control/attach_client.h"

#include <algorithm>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "common/platform/platform.h"
#include "common/rpc/call.h"
#include "espalier/v1/worker.grpc.pb.h"
#include "worker/control/outbox.h"

namespace espalier {
namespace {

constexpr size_t kStepsKept = 1024;
constexpr absl::Duration kWelcomePoll = absl::Milliseconds(200);
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(2);
// Progress messages per failure_timeout: one may be lost or late.
constexpr int kProgressPerTimeout = 4;
// Leases are renewed by them, too.
constexpr absl::Duration kLongestProgressInterval = absl::Seconds(5);
// For so long a worker whose lease has run out holds: espalierd's machine may sleep for a night, or
// wait for somebody to mend it. Then it gives its memory back.
constexpr absl::Duration kLongestHold = absl::Hours(12);

using Stream = grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>;

enum class Stage { kIntroducing, kTraining };

// Whether another attempt is pointless. A generation that trains is ended by fencing only: a wrong
// answer to its next attempt (an expired certificate, a coordinator being set up anew) may be
// mended while it goes on.
bool IsFinal(const absl::Status& status, Stage stage) {
  if (absl::IsFailedPrecondition(status)) return true;
  return stage == Stage::kIntroducing &&
         (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
          absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
          absl::IsUnimplemented(status));
}

// FAILED_PRECONDITION when the welcome to a new stream is not to the generation that trains here:
// an espalierd that has lost its journal knows another job by the same mpirun, and counts
// directives from 1 again, so that its pauses would be taken for old ones.
absl::Status CheckSameGeneration(const v1::Welcome& first, int64_t directive,
                                 const v1::Welcome& again) {
  const bool same = again.job_id() == first.job_id() && again.generation() == first.generation();
  if (same && again.directive().number() >= directive) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "espalierd welcomed this worker to generation ", again.generation(), " of job ",
      again.job_id(), " with directive ", again.directive().number(), ", but it trains generation ",
      first.generation(), " of job ", first.job_id(), " and knows directive ", directive,
      "; was espalierd's journal moved or restored? Start the job again"));
}

class AttachClient final : public ControlClient {
 public:
  AttachClient(AttachOptions options, std::shared_ptr<grpc::Channel> channel, Clock& clock)
      : options_(std::move(options)),
        stub_(v1::WorkerService::NewStub(channel)),
        clock_(clock),
        outbox_(kStepsKept) {}

  ~AttachClient() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.WakeAll();
      if (context_ != nullptr) context_->TryCancel();
    }
    if (thread_.joinable()) thread_.join();
  }

  absl::StatusOr<v1::Welcome> Attach(const v1::Hello& hello, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mutex_) {
    hello_ = hello;
    thread_ = std::thread([this] { Run(); });
    absl::Status failure;
    {
      absl::MutexLock lock(&mutex_);
      const auto answered = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return welcome_.has_value() || !status_.ok();
      };
      heard_at_ = clock_.Monotonic();
      if (!changed_.Wait(mutex_, std::min(timeout, options_.patience), answered)) {
        LogInfo(absl::StrCat("waits for espalierd at ", options_.target.address, " to answer, for ",
                             absl::FormatDuration(timeout), " at most",
                             last_error_.empty() ? "" : ": ", last_error_));
      }
      while (!answered() && clock_.Monotonic() < heard_at_ + timeout) {
        changed_.Wait(mutex_, heard_at_ + timeout - clock_.Monotonic(), answered);
      }
      if (welcome_.has_value()) return *welcome_;
      if (!status_.ok()) return status_;
      failure = absl::DeadlineExceededError(absl::StrCat(
          "espalierd at ", options_.target.address, " did not answer within ",
          absl::FormatDuration(timeout), last_error_.empty() ? "" : ": ", last_error_));
    }
    return ExplainFailure(failure, options_.target, clock_);
  }

  v1::Directive directive() const override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return directive_;
  }

  bool WaitForDirectiveAfter(int64_t number, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto newer = [this, number]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return directive_.number() > number || !status_.ok();
    };
    changed_.Wait(mutex_, timeout, newer);
    return directive_.number() > number;
  }

  absl::StatusOr<bool> WaitForLease(absl::Duration timeout) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto leased = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return lease_ == absl::ZeroDuration() || TimeWithSleep() < lease_until_;
    };
    const auto known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return leased() || !status_.ok();
    };
    const absl::Duration start = clock_.Monotonic();
    changed_.Wait(mutex_, timeout, known);
    if (!status_.ok()) return status_;
    if (leased()) {
      held_ = absl::ZeroDuration();
      return true;
    }
    // What the machine slept meanwhile is no wait.
    held_ += std::min(clock_.Monotonic() - start, timeout);
    if (held_ < kLongestHold) return false;
    return absl::UnavailableError(absl::StrCat(
        "espalierd at ", options_.target.address, " has not renewed this worker's lease for ",
        absl::FormatDuration(kLongestHold), "; start the job again when it is back"));
  }

  void Report(v1::AttachRequest message) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    outbox_.Add(std::move(message));
    changed_.WakeAll();
  }

  absl::Status Finish(const v1::Finished& finished, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    v1::AttachRequest message;
    *message.mutable_finished() = finished;
    outbox_.Add(std::move(message));
    finishing_ = true;
    changed_.WakeAll();
    const auto told = [this]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return told_ || !status_.ok(); };
    if (!changed_.Wait(mutex_, timeout, told)) {
      return absl::DeadlineExceededError(
          absl::StrCat("espalierd at ", options_.target.address, " could not be told the outcome"));
    }
    return told_ ? absl::OkStatus() : status_;
  }

  absl::Status status() const override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

  ProgressBoard& progress() override { return board_; }

 private:
  // Opens streams until told to stop, fenced, or the last message has been delivered.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_) {
    SplitMix64 random(static_cast<uint64_t>(hello_.pid()), hello_.rank());
    absl::Duration pause = kFirstPause;
    while (true) {
      const absl::Status ended = OneStream();
      absl::MutexLock lock(&mutex_);
      if (stopping_ || told_) return;
      const Stage stage = welcome_.has_value() ? Stage::kTraining : Stage::kIntroducing;
      if (IsFinal(ended, stage)) {
        status_ = ended;
        changed_.WakeAll();
        break;
      }
      if (connected_) {
        LogWarning(absl::StrCat("the stream to espalierd ended (", ended.message(),
                                "); training goes on, attaching again"));
        pause = kFirstPause;
      } else if (stage == Stage::kIntroducing && absl::IsAborted(ended)) {
        heard_at_ = clock_.Monotonic();
        if (ended.message() != last_error_) LogInfo(absl::StrCat("waits: ", ended.message()));
      } else if (ended.message() != last_error_ && stage == Stage::kTraining) {
        LogWarning(absl::StrCat("cannot attach to espalierd again yet: ", ended.message()));
      }
      last_error_ = std::string(ended.message());
      connected_ = false;
      const auto stop = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
      // Jitter, so that the workers of a restarted coordinator do not come all at once.
      changed_.Wait(mutex_, pause * (0.5 + random.Uniform()), stop);
      if (stopping_) return;
      pause = std::min(pause * 2, kLongestPause);
    }
    if (options_.on_fenced) options_.on_fenced(status());
  }

  // One stream from its opening to its end; returns why it ended.
  absl::Status OneStream() ABSL_LOCKS_EXCLUDED(mutex_) {
    grpc::ClientContext context;
    PrepareCall(context, options_.target, kStreamDeadline);
    v1::AttachRequest hello;
    *hello.mutable_hello() = hello_;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return absl::CancelledError("stopping");
      // A call that fails at once while the channel is between two attempts leaves nobody to drive
      // the next attempt, which then stalls until its deadline: wait inside the call instead. The
      // first stream fails at once, so that Attach can say why.
      context.set_wait_for_ready(welcome_.has_value());
      // Once welcomed it belongs to that generation, by whomever its mpirun was started.
      if (welcome_.has_value()) hello.mutable_hello()->set_job_id(welcome_->job_id());
      if (welcome_.has_value()) hello.mutable_hello()->set_generation(welcome_->generation());
      context_ = &context;
      hello_at_ = TimeWithSleep();
      reader_ended_ = false;
      outbox_.Reconnected();
    }
    const std::unique_ptr<Stream> stream = stub_->Attach(&context);
    const bool introduced = stream->Write(hello);
    std::thread reader([this, &stream] { Read(*stream); });
    if (introduced) WriteUntilItEnds(*stream);
    bool all_told;
    {
      absl::MutexLock lock(&mutex_);
      all_told = finishing_ && outbox_.empty() && !reader_ended_;
    }
    // The server ends the stream itself when it has read the last message. In all other cases it
    // is over already; cancelling it here could hide the server's reason.
    if (all_told) stream->WritesDone();
    reader.join();
    const absl::Status ended = FromGrpc(stream->Finish());
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
    if (!stranger_.ok()) return stranger_;
    if (all_told && ended.ok()) {
      told_ = true;
      changed_.WakeAll();
    }
    return ended.ok() ? absl::UnavailableError("espalierd closed it") : ended;
  }

  // Writes reports as they come, and progress at its own times whatever else is written.
  void WriteUntilItEnds(Stream& stream) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Duration progress_at = clock_.Monotonic();
    while (const std::optional<v1::AttachRequest> message = Next(progress_at)) {
      if (!stream.Write(*message)) return;
    }
  }

  // Waits for the next message; none when the stream is over or everything has been told.
  std::optional<v1::AttachRequest> Next(absl::Duration& progress_at) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    while (true) {
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || reader_ended_ || (connected_ && (finishing_ || !outbox_.empty()));
      };
      // Nothing but the introduction may precede the welcome.
      const absl::Duration wait = connected_ ? progress_at - clock_.Monotonic() : kWelcomePoll;
      changed_.Wait(mutex_, wait, due);
      if (stopping_ || reader_ended_) return std::nullopt;
      if (!connected_) continue;
      if (clock_.Monotonic() >= progress_at) {
        progress_at = clock_.Monotonic() + progress_interval_;
        v1::AttachRequest message;
        *message.mutable_progress() = Progress();
        return message;
      }
      if (std::optional<v1::AttachRequest> message = outbox_.Take()) return message;
      if (finishing_) return std::nullopt;
    }
  }

  v1::Progress Progress() const {
    v1::Progress progress;
    progress.set_step(board_.step);
    progress.set_phase(board_.phase);
    progress.set_collective(board_.collective);
    progress.set_work(board_.work);
    progress.set_layer(board_.layer);
    progress.set_beat(absl::ToInt64Nanoseconds(TimeWithSleep()));
    if (const auto memory = ReadProcessMemory(); memory.ok()) {
      progress.set_memory_bytes(memory->now_bytes);
      progress.set_memory_peak_bytes(memory->peak_bytes);
    }
    return progress;
  }

  void Read(Stream& stream) ABSL_LOCKS_EXCLUDED(mutex_) {
    v1::AttachResponse response;
    while (stream.Read(&response)) {
      absl::MutexLock lock(&mutex_);
      if (response.has_welcome()) {
        if (!welcome_.has_value()) welcome_ = response.welcome();
        stranger_ = CheckSameGeneration(*welcome_, directive_.number(), response.welcome());
        if (!stranger_.ok()) {
          context_->TryCancel();
          break;
        }
        connected_ = true;
        lease_ = absl::Seconds(response.welcome().lease_seconds());
        RenewFrom(hello_at_);
        Adopt(response.welcome().directive());
        progress_interval_ =
            std::min(absl::Seconds(response.welcome().spec().health().failure_timeout_seconds()) /
                         kProgressPerTimeout,
                     kLongestProgressInterval);
      } else if (response.has_directive()) {
        Adopt(response.directive());
      } else if (response.has_renewal()) {
        RenewFrom(absl::Nanoseconds(response.renewal().beat()));
      }
      changed_.WakeAll();
    }
    absl::MutexLock lock(&mutex_);
    reader_ended_ = true;
    changed_.WakeAll();
  }

  void Adopt(const v1::Directive& directive) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (directive.number() > directive_.number()) directive_ = directive;
  }

  // The lease counts from when the answered message was sent: no clocks are compared, and who waits
  // for its end may count from when it was heard.
  void RenewFrom(absl::Duration sent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    lease_until_ = std::max(lease_until_, sent + lease_);
  }

  const AttachOptions options_;
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  Clock& clock_;
  ProgressBoard board_;
  v1::Hello hello_;  // written before the thread starts
  std::thread thread_;

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;  // anything of the following
  Outbox outbox_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Welcome> welcome_ ABSL_GUARDED_BY(mutex_);
  v1::Directive directive_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::Status stranger_ ABSL_GUARDED_BY(mutex_);  // why the last welcome was not for this worker
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
  // When Attach began, or espalierd last said that this worker must wait.
  absl::Duration heard_at_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  // By TimeWithSleep: the hello on the stream at hand, and the end of the lease (zero: there is no
  // lease).
  absl::Duration hello_at_ ABSL_GUARDED_BY(mutex_);
  absl::Duration lease_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  absl::Duration lease_until_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  absl::Duration held_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();  // waited without a lease
  absl::Duration progress_interval_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1);
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;     // welcomed on the stream at hand
  bool reader_ended_ ABSL_GUARDED_BY(mutex_) = false;  // of the stream at hand
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_ ABSL_GUARDED_BY(mutex_) = false;  // the last message has been read
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlClient>> MakeAttachClient(AttachOptions options,
                                                                Clock& clock) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(options.target, clock));
  return std::make_unique<AttachClient>(std::move(options), std::move(channel), clock);
}

}  // namespace espalier
