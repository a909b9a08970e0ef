#include "worker/control/standalone_client.h"

#include <utility>

namespace espalier {
namespace {

class StandaloneClient final : public ControlClient {
 public:
  StandaloneClient(StandaloneOptions options, Clock& clock)
      : options_(std::move(options)), clock_(clock) {}

  absl::StatusOr<v1::Welcome> Attach(const v1::Hello& hello, absl::Duration timeout) override {
    return options_.welcome;
  }
  v1::Directive directive() const override { return options_.welcome.directive(); }
  bool WaitForDirectiveAfter(int64_t number, absl::Duration timeout) override {
    if (directive().number() > number) return true;
    clock_.Sleep(timeout);
    return false;
  }
  absl::StatusOr<bool> WaitForLease(absl::Duration timeout) override { return true; }
  void Report(v1::AttachRequest message) override {}
  absl::Status Finish(const v1::Finished& finished, absl::Duration timeout) override {
    return absl::OkStatus();
  }
  absl::Status status() const override { return absl::OkStatus(); }
  ProgressBoard& progress() override { return board_; }

 private:
  const StandaloneOptions options_;
  Clock& clock_;
  ProgressBoard board_;
};

}  // namespace

std::unique_ptr<ControlClient> MakeStandaloneClient(StandaloneOptions options, Clock& clock) {
  return std::make_unique<StandaloneClient>(std::move(options), clock);
}

}  // namespace espalier
