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
#include "common/rpc/deadline.h"
#include "common/rpc/status.h"
#include "espalier/v1/worker.grpc.pb.h"
#include "worker/control/outbox.h"

namespace espalier {
namespace {

constexpr size_t kStepsKept = 1024;
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(5);
// Progress messages per failure_timeout: one may be lost or late.
constexpr int kProgressPerTimeout = 4;

using Stream = grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>;

// Errors that another attempt cannot mend.
bool IsFinal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsUnauthenticated(status) ||
         absl::IsPermissionDenied(status) || absl::IsInvalidArgument(status) ||
         absl::IsNotFound(status);
}

class AttachClient final : public ControlLink {
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
      mutex_.AwaitWithTimeout(absl::Condition(&answered), timeout);
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
    mutex_.AwaitWithTimeout(absl::Condition(&newer), timeout);
    return directive_.number() > number;
  }

  void Report(v1::AttachRequest message) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    outbox_.Add(std::move(message));
  }

  absl::Status Finish(const v1::Finished& finished, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    v1::AttachRequest message;
    *message.mutable_finished() = finished;
    outbox_.Add(std::move(message));
    finishing_ = true;
    const auto told = [this]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return told_ || !status_.ok(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&told), timeout)) {
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
      const bool was_welcomed = welcomed();
      const absl::Status ended = OneStream();
      absl::MutexLock lock(&mutex_);
      if (stopping_ || told_) return;
      if (IsFinal(ended)) {
        status_ = ended;
        break;
      }
      last_error_ = std::string(ended.message());
      if (connected_) {
        LogWarning(absl::StrCat("the stream to espalierd ended (", last_error_,
                                "); training goes on, attaching again"));
        pause = kFirstPause;
      }
      connected_ = false;
      const auto stop = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
      // Jitter, so that the workers of a restarted coordinator do not come all at once.
      mutex_.AwaitWithTimeout(absl::Condition(&stop), pause * (0.5 + random.Uniform()));
      if (stopping_) return;
      pause = std::min(pause * 2, was_welcomed ? kLongestPause : absl::Seconds(1));
    }
    if (options_.on_fenced) options_.on_fenced(status());
  }

  bool welcomed() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return welcome_.has_value();
  }

  // One stream from its opening to its end; returns why it ended.
  absl::Status OneStream() ABSL_LOCKS_EXCLUDED(mutex_) {
    grpc::ClientContext context;
    SetDeadline(context, kStreamDeadline);
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return absl::CancelledError("stopping");
      context_ = &context;
      reader_ended_ = false;
      outbox_.Reconnected();
    }
    const std::unique_ptr<Stream> stream = stub_->Attach(&context);
    v1::AttachRequest hello;
    *hello.mutable_hello() = hello_;
    const bool introduced = stream->Write(hello);
    std::thread reader([this, &stream] { Read(*stream); });
    if (introduced) WriteUntilItEnds(*stream);
    bool all_told;
    {
      absl::MutexLock lock(&mutex_);
      all_told = finishing_ && outbox_.empty() && !reader_ended_;
    }
    // The server ends the stream itself when it has read the last message.
    if (all_told) {
      stream->WritesDone();
    } else {
      context.TryCancel();
    }
    reader.join();
    const absl::Status ended = FromGrpc(stream->Finish());
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
    if (all_told && ended.ok()) told_ = true;
    return ended.ok() ? absl::UnavailableError("espalierd closed it") : ended;
  }

  // Writes reports as they come and progress at its interval.
  void WriteUntilItEnds(Stream& stream) ABSL_LOCKS_EXCLUDED(mutex_) {
    while (true) {
      v1::AttachRequest message;
      {
        absl::MutexLock lock(&mutex_);
        const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stopping_ || reader_ended_ || (connected_ && (finishing_ || !outbox_.empty()));
        };
        const bool reported = mutex_.AwaitWithTimeout(absl::Condition(&due), progress_interval_);
        if (stopping_ || reader_ended_) return;
        // Nothing but the introduction may precede the welcome.
        if (!connected_) continue;
        std::optional<v1::AttachRequest> next = outbox_.Take();
        if (next.has_value()) {
          message = *std::move(next);
        } else if (finishing_) {
          return;
        } else if (!reported) {
          *message.mutable_progress() = Progress();
        } else {
          continue;
        }
      }
      if (!stream.Write(message)) return;
    }
  }

  v1::Progress Progress() const {
    v1::Progress progress;
    progress.set_step(board_.step);
    progress.set_phase(board_.phase);
    progress.set_collective(board_.collective);
    progress.set_work(board_.work);
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
        connected_ = true;
        if (!welcome_.has_value()) welcome_ = response.welcome();
        Adopt(response.welcome().directive());
        progress_interval_ =
            absl::Seconds(response.welcome().spec().health().failure_timeout_seconds()) /
            kProgressPerTimeout;
      } else if (response.has_directive()) {
        Adopt(response.directive());
      }
    }
    absl::MutexLock lock(&mutex_);
    reader_ended_ = true;
  }

  void Adopt(const v1::Directive& directive) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (directive.number() > directive_.number()) directive_ = directive;
  }

  const AttachOptions options_;
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  Clock& clock_;
  ProgressBoard board_;
  v1::Hello hello_;  // written before the thread starts
  std::thread thread_;

  mutable absl::Mutex mutex_;
  Outbox outbox_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Welcome> welcome_ ABSL_GUARDED_BY(mutex_);
  v1::Directive directive_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
  absl::Duration progress_interval_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1);
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;     // welcomed on the stream at hand
  bool reader_ended_ ABSL_GUARDED_BY(mutex_) = false;  // of the stream at hand
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_ ABSL_GUARDED_BY(mutex_) = false;  // the last message has been read
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlLink>> MakeAttachClient(AttachOptions options, Clock& clock) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(options.target, clock));
  return std::make_unique<AttachClient>(std::move(options), std::move(channel), clock);
}

}  // namespace espalier
