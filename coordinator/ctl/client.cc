#include "coordinator/ctl/client.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/call.h"
#include "coordinator/ctl/text.h"

namespace espalier::ctl {
namespace {

constexpr absl::Duration kTickInterval = absl::Seconds(1);
// How long `watch` keeps trying while espalierd is away, and how often.
constexpr absl::Duration kReconnectPatience = absl::Seconds(60);
constexpr absl::Duration kReconnectInterval = absl::Milliseconds(500);
constexpr absl::Duration kConnectPatience = absl::Seconds(2);

absl::StatusOr<std::optional<TlsFiles>> ChosenTls(const GlobalOptions& options) {
  const bool any =
      !options.tls_ca.empty() || !options.tls_certificate.empty() || !options.tls_key.empty();
  const bool all =
      !options.tls_ca.empty() && !options.tls_certificate.empty() && !options.tls_key.empty();
  if (!any) return std::optional<TlsFiles>();
  if (!all) {
    return absl::InvalidArgumentError(
        "--tls-ca, --tls-cert and --tls-key belong together: give all three or none");
  }
  return std::optional<TlsFiles>(TlsFiles{
      .ca = options.tls_ca, .certificate = options.tls_certificate, .key = options.tls_key});
}

// One Watch stream, read by a thread of its own so that the screen can be kept alive between two
// messages.
class WatchStream {
 public:
  WatchStream(const ChannelTarget& target, v1::OperatorService::Stub& stub,
              const std::string& job_id, absl::Duration deadline) {
    PrepareCall(call_, target, deadline);
    v1::WatchRequest request;
    request.set_job_id(job_id);
    reader_ = stub.Watch(&call_, request);
    thread_ = std::thread([this] { Read(); });
  }

  ~WatchStream() {
    call_.TryCancel();
    thread_.join();
  }

  // Waits for a newer status or the end, at most for `timeout`. True: `status` was replaced.
  bool Next(v1::JobStatus& status, absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    news_.Wait(mutex_, timeout,
               [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return HasNews(); });
    if (!latest_.has_value()) return false;
    status = *std::exchange(latest_, std::nullopt);
    return true;
  }

  // Set when the stream has ended and everything it brought was taken.
  std::optional<grpc::Status> ended() {
    absl::MutexLock lock(&mutex_);
    return latest_.has_value() ? std::nullopt : end_;
  }

 private:
  bool HasNews() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return latest_.has_value() || end_.has_value();
  }

  void Read() {
    v1::WatchResponse response;
    while (reader_->Read(&response)) {
      absl::MutexLock lock(&mutex_);
      latest_ = response.status();
      news_.WakeAll();
    }
    const grpc::Status end = reader_->Finish();
    absl::MutexLock lock(&mutex_);
    end_ = end;
    news_.WakeAll();
  }

  grpc::ClientContext call_;
  std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> reader_;
  absl::Mutex mutex_;
  SteadyCondition news_;
  std::optional<v1::JobStatus> latest_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

bool IsOver(const grpc::Status& end) {
  return end.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

// Whether a stream that ended before its job is worth opening again: at once when it lived to its
// deadline; for kReconnectPatience when espalierd went away. Streams of which none brought anything
// are not.
class Reopening {
 public:
  explicit Reopening(Clock& clock) : clock_(clock) {}
  // `brought`: the stream brought a message.
  bool Allows(const grpc::Status& end, bool brought) {
    if (brought) heard_ = clock_.Monotonic();
    if (IsOver(end)) return brought;
    // A server that is stopping cancels what it has just accepted.
    const bool away = end.ok() || end.error_code() == grpc::StatusCode::UNAVAILABLE ||
                      end.error_code() == grpc::StatusCode::CANCELLED;
    return away && heard_ && clock_.Monotonic() - *heard_ < kReconnectPatience;
  }

 private:
  Clock& clock_;
  // When a stream that had brought something ended.
  std::optional<absl::Duration> heard_;
};

}  // namespace

OperatorClient::OperatorClient(ChannelTarget target, std::shared_ptr<grpc::Channel> channel,
                               Clock& clock, Times times)
    : target_(std::move(target)),
      channel_(std::move(channel)),
      stub_(v1::OperatorService::NewStub(channel_)),
      clock_(&clock),
      times_(times) {}

absl::StatusOr<OperatorClient> OperatorClient::Connect(const Context& context,
                                                       absl::Duration stream_deadline) {
  ASSIGN_OR_RETURN(std::optional<TlsFiles> tls, ChosenTls(context.options));
  ASSIGN_OR_RETURN(ChannelTarget target, MakeTarget(context.options.coordinator, std::move(tls),
                                                    context.options.token_file));
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(target, context.clock));
  return OperatorClient(
      std::move(target), std::move(channel), context.clock,
      {.call = absl::Seconds(context.options.timeout_seconds), .stream = stream_deadline});
}

void OperatorClient::Prepare(grpc::ClientContext& call) const {
  PrepareCall(call, target_, times_.call);
}

absl::Status OperatorClient::Explain(const grpc::Status& status) const {
  const absl::Status error = ExplainFailure(FromGrpc(status), target_, *clock_);
  if (!absl::IsDeadlineExceeded(error)) return error;
  return absl::DeadlineExceededError(absl::StrCat("no answer from ", target_.address, " within ",
                                                  DurationText(times_.call),
                                                  "; --timeout SECONDS waits longer"));
}

// A handshake goes on only while somebody waits for the channel: between calls that fail at once
// nobody does.
void OperatorClient::AwaitConnection() {
  espalier::Connect(*channel_, kConnectPatience);
  clock_->Sleep(kReconnectInterval);
}

absl::StatusOr<v1::JobStatus> OperatorClient::Follow(
    const std::string& job_id, const std::function<bool(const v1::JobStatus&)>& tick,
    const std::function<void(const absl::Status&)>& interrupted) {
  std::string id = job_id;
  std::optional<v1::JobStatus> last;
  Reopening reopening(*clock_);
  while (true) {
    WatchStream stream(target_, *stub_, id, times_.stream);
    bool brought = false;
    std::optional<grpc::Status> end;
    while (!(end = stream.ended()).has_value()) {
      v1::JobStatus status;
      if (stream.Next(status, kTickInterval)) {
        brought = true;
        id = status.id();  // A name may come to mean another job; the id does not.
        last = std::move(status);
      }
      if (!last.has_value()) continue;
      if (!tick(*last) || IsFinal(last->state())) return *last;
    }
    if (!reopening.Allows(*end, brought)) {
      const absl::Status error = Explain(*end);
      if (!error.ok()) return error;
      return absl::UnavailableError("espalierd ended the stream before the job did");
    }
    if (IsOver(*end)) continue;
    interrupted(FromGrpc(*end));
    AwaitConnection();
  }
}

absl::Status OperatorClient::Logs(v1::LogsRequest request,
                                  const std::function<bool(const std::string&)>& sink) {
  Reopening reopening(*clock_);
  while (true) {
    grpc::ClientContext call;
    PrepareCall(call, target_, request.follow() ? times_.stream : times_.call);
    const std::unique_ptr<grpc::ClientReader<v1::LogsResponse>> reader =
        stub_->Logs(&call, request);
    v1::LogsResponse response;
    bool brought = false;
    while (reader->Read(&response)) {
      brought = true;
      *request.mutable_after() = response.position();
      if (!response.job_id().empty()) request.set_job_id(response.job_id());
      if (response.text().empty() || sink(response.text())) continue;
      call.TryCancel();
      reader->Finish();
      return absl::OkStatus();
    }
    const grpc::Status end = reader->Finish();
    const bool again = request.follow() && !end.ok() && reopening.Allows(end, brought);
    if (!again) return Explain(end);
    if (!IsOver(end)) AwaitConnection();
  }
}

}  // namespace espalier::ctl
