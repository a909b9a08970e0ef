#include "worker/ending.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "absl/strings/string_view.h"

namespace espalier {

WorkerExit ExitOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return WorkerExit::kDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kDataLoss:  // a damaged file
    case absl::StatusCode::kUnimplemented:
      return WorkerExit::kBadInput;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return WorkerExit::kLost;
    default:
      return WorkerExit::kFailed;
  }
}

void LeaveAtOnce(WorkerExit code) {
  std::fflush(nullptr);
  _exit(static_cast<int>(code));
}

namespace {

struct Fatal {
  int number;
  const char* name;
};
constexpr Fatal kFatal[] = {{SIGSEGV, "SIGSEGV"},
                            {SIGBUS, "SIGBUS"},
                            {SIGFPE, "SIGFPE"},
                            {SIGILL, "SIGILL"},
                            {SIGABRT, "SIGABRT"}};
constexpr size_t kFatals = sizeof(kFatal) / sizeof(kFatal[0]);

std::atomic<const ProgressBoard*> board{nullptr};
std::atomic<int> rank_number{0};
std::array<struct sigaction, kFatals> before;

// A line put together without an allocation, as a signal handler must.
class Line {
 public:
  Line& Add(absl::string_view text) {
    for (const char c : text) {
      if (size_ < text_.size() - 1) text_[size_++] = c == '\n' ? ' ' : c;
    }
    return *this;
  }
  Line& Add(int64_t number) {
    std::array<char, 20> digits{};
    size_t n = 0;
    for (auto rest = static_cast<uint64_t>(number); n == 0 || rest > 0; rest /= 10) {
      digits[n++] = static_cast<char>('0' + rest % 10);
    }
    while (n > 0) Add(absl::string_view(&digits[--n], 1));
    return *this;
  }
  void Write() {
    text_[size_++] = '\n';
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text_.data(), size_);
  }

 private:
  std::array<char, 512> text_{};
  size_t size_ = 0;
};

const char* NameOf(v1::Phase phase) {
  switch (phase) {
    case v1::PHASE_STARTING:
      return "starting";
    case v1::PHASE_BOUNDARY:
      return "at the boundary";
    case v1::PHASE_DATA_WAIT:
      return "waiting for data";
    case v1::PHASE_COMPUTE:
      return "computing";
    case v1::PHASE_EXCHANGE:
      return "exchanging gradients";
    case v1::PHASE_UPDATE:
      return "updating";
    case v1::PHASE_EVALUATE:
      return "evaluating";
    case v1::PHASE_CHECKPOINT:
      return "writing a checkpoint";
    case v1::PHASE_PAUSED:
      return "paused";
    case v1::PHASE_ROLLOUT:
      return "sampling completions";
    case v1::PHASE_REWARD:
      return "having completions judged";
    default:
      return "in no phase";
  }
}

void Say(absl::string_view what, absl::string_view more) {
  Line line;
  line.Add("espalier-worker: rank ").Add(rank_number.load()).Add(" died of ").Add(what);
  if (const ProgressBoard* now = board.load()) {
    line.Add(" in step ").Add(now->step.load()).Add(", ").Add(NameOf(now->phase.load()));
  }
  if (!more.empty()) line.Add(": ").Add(more);
  line.Write();
}

void OnSignal(int number, siginfo_t* info, void*) {
  for (size_t i = 0; i < kFatals; ++i) {
    if (kFatal[i].number != number) continue;
    Say(kFatal[i].name, "");
    sigaction(number, &before[i], nullptr);
  }
  // What an instruction caused happens again when this returns; what was sent is sent again.
  if (info->si_code <= 0 || number == SIGABRT) raise(number);
}

[[noreturn]] void OnTerminate() {
  // One line: abort's signal would say another.
  for (size_t i = 0; i < kFatals; ++i) {
    if (kFatal[i].number == SIGABRT) sigaction(SIGABRT, &before[i], nullptr);
  }
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& exception) {
      Say("an exception that nobody caught", exception.what());
    } catch (...) {
      Say("an exception that nobody caught", "");
    }
  } else {
    Say("std::terminate", "");
  }
  std::abort();
}

}  // namespace

void InstallLastWords(const ProgressBoard& progress, int rank) {
  rank_number = rank;
  if (board.exchange(&progress) != nullptr) return;  // installed already
  // A stack of its own, for the thread that overflows its own.
  static std::array<char, size_t{64} << 10> stack;
  stack_t alternative{};  // by name: the order of its fields is each system's own
  alternative.ss_sp = stack.data();
  alternative.ss_size = stack.size();
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (size_t i = 0; i < kFatals; ++i) sigaction(kFatal[i].number, &action, &before[i]);
  std::set_terminate(OnTerminate);
}

}  // namespace espalier
