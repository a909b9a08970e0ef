#include "worker/reward/line_process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

constexpr size_t kLineBytesMax = size_t{1} << 20;
constexpr size_t kLoggedBytesMax = 4096;
constexpr size_t kLastWords = 5;
constexpr absl::Duration kPoll = absl::Milliseconds(5);
constexpr absl::Duration kKillLimit = absl::Seconds(5);

void Close(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

// Six ends: of input, output and errors each to read from and to write to.
class Pipes {
 public:
  ~Pipes() {
    for (int& end : ends_) Close(end);
  }
  absl::Status Open() {
    for (size_t i = 0; i < ends_.size(); i += 2) {
      if (pipe(&ends_[i]) != 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("cannot make a pipe: ", std::strerror(errno)));
      }
      fcntl(ends_[i], F_SETFD, FD_CLOEXEC);
      fcntl(ends_[i + 1], F_SETFD, FD_CLOEXEC);
    }
    return absl::OkStatus();
  }
  int at(size_t end) const { return ends_[end]; }
  // Ours from now on, and never waited for.
  int Take(size_t end) {
    fcntl(ends_[end], F_SETFL, fcntl(ends_[end], F_GETFL) | O_NONBLOCK);
#ifdef F_SETNOSIGPIPE  // macOS, where the signal may go to another thread
    fcntl(ends_[end], F_SETNOSIGPIPE, 1);
#endif
    return std::exchange(ends_[end], -1);
  }

 private:
  std::array<int, 6> ends_{-1, -1, -1, -1, -1, -1};
};

// write() without SIGPIPE, whatever this program does of it.
ssize_t WriteQuietly(int fd, const std::string& bytes) {
  sigset_t pipe_signal, before, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const ssize_t written = write(fd, bytes.data(), bytes.size());
  const int error = errno;
  if (written < 0 && error == EPIPE && !was_pending) {
    sigpending(&pending);
    int signal = 0;
    if (sigismember(&pending, SIGPIPE) == 1) sigwait(&pipe_signal, &signal);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return written;
}

// Appends what is there to `text`, `limit` bytes at most. False: it has ended.
bool ReadInto(int fd, std::string& text, size_t limit) {
  char buffer[16384];
  while (text.size() < limit) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got > 0) {
      text.append(buffer, static_cast<size_t>(got));
    } else if (got == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<LineProcess> LineProcess::Start(const Options& options) {
  Pipes pipes;
  RETURN_IF_ERROR(pipes.Open());
  SpawnOptions spawn{.argv = options.command, .folder = options.folder};
  spawn.input = pipes.at(0);
  spawn.output = pipes.at(3);
  spawn.errors = pipes.at(5);
  spawn.apart = SpawnOptions::Apart::kGroup;
  ASSIGN_OR_RETURN(GatedProcess child, GatedProcess::Spawn(spawn));
  LineProcess process;
  process.name_ = options.name;
  process.pid_ = child.identity().pid;
  process.input_ = pipes.Take(1);
  process.output_ = pipes.Take(2);
  process.errors_ = pipes.Take(4);
  child.Release();
  return process;
}

LineProcess::LineProcess(LineProcess&& other) noexcept { *this = std::move(other); }

LineProcess& LineProcess::operator=(LineProcess&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(pid_, other.pid_);
  std::swap(input_, other.input_);
  std::swap(output_, other.output_);
  std::swap(errors_, other.errors_);
  std::swap(unsent_, other.unsent_);
  std::swap(received_, other.received_);
  std::swap(unlogged_, other.unlogged_);
  std::swap(last_words_, other.last_words_);
  std::swap(exit_, other.exit_);
  std::swap(ended_, other.ended_);
  return *this;
}

LineProcess::~LineProcess() { End(absl::ZeroDuration()); }

void LineProcess::Send(absl::string_view line) { absl::StrAppend(&unsent_, line, "\n"); }

void LineProcess::AppendWaits(std::vector<pollfd>& waits) const {
  if (output_ >= 0) waits.push_back({.fd = output_, .events = POLLIN, .revents = 0});
  if (errors_ >= 0) waits.push_back({.fd = errors_, .events = POLLIN, .revents = 0});
  if (input_ >= 0 && !unsent_.empty()) {
    waits.push_back({.fd = input_, .events = POLLOUT, .revents = 0});
  }
}

absl::Status LineProcess::Move() {
  // Before the output is read, so that nothing is left in it once this says that it has ended.
  const bool gone = pid_ < 0 || !IdentifyProcess(pid_).ok();
  Write();
  ReadErrors();
  RETURN_IF_ERROR(ReadOutput());
  ended_ = ended_ || gone;
  return absl::OkStatus();
}

void LineProcess::Write() {
  while (input_ >= 0 && !unsent_.empty()) {
    const ssize_t written = WriteQuietly(input_, unsent_);
    if (written >= 0) {
      unsent_.erase(0, static_cast<size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      Close(input_);  // it reads no more; what that means shows in its output
    }
  }
}

absl::Status LineProcess::ReadOutput() {
  if (output_ < 0) return absl::OkStatus();
  if (!ReadInto(output_, received_, kLineBytesMax + 1)) {
    Close(output_);
    ended_ = true;
  }
  if (received_.size() <= kLineBytesMax || received_.find('\n') != std::string::npos) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError("a line that is longer than 1 MiB");
}

void LineProcess::ReadErrors() {
  if (errors_ < 0) return;
  const bool open = ReadInto(errors_, unlogged_, kLineBytesMax);
  LogErrors(/*all=*/!open);
  if (!open) Close(errors_);
}

// Whole lines, and pieces of those that are too long.
void LineProcess::LogErrors(bool all) {
  while (!unlogged_.empty()) {
    const size_t newline = unlogged_.find('\n');
    if (newline == std::string::npos && unlogged_.size() < kLoggedBytesMax && !all) return;
    const size_t size = std::min({newline, unlogged_.size(), kLoggedBytesMax});
    const std::string line = unlogged_.substr(0, size);
    unlogged_.erase(0, size == newline ? size + 1 : size);
    if (line.empty()) continue;
    LogInfo(absl::StrCat(name_, ": ", line));
    last_words_.push_back(line);
    if (last_words_.size() > kLastWords) last_words_.pop_front();
  }
}

std::optional<std::string> LineProcess::TakeLine() {
  const size_t newline = received_.find('\n');
  if (newline == std::string::npos) return std::nullopt;
  std::string line = received_.substr(0, newline);
  received_.erase(0, newline + 1);
  return line;
}

std::string LineProcess::Ending() const {
  std::string text = "it was ended";
  if (exit_ && exit_->signal != 0) text = absl::StrCat("it ended by signal ", exit_->signal);
  if (exit_ && exit_->signal == 0) text = absl::StrCat("it ended with exit code ", exit_->code);
  if (!received_.empty()) absl::StrAppend(&text, ", in the middle of a line");
  if (last_words_.empty()) return text;
  return absl::StrCat(text, "; it said: ", absl::StrJoin(last_words_, " | "));
}

void LineProcess::CloseInput() { Close(input_); }

void LineProcess::End(absl::Duration grace) {
  CloseInput();
  if (pid_ < 0) return;
  Clock& clock = RealClock();
  const absl::Duration deadline = clock.Monotonic() + grace;
  while (IdentifyProcess(pid_).ok() && clock.Monotonic() < deadline) {
    ReadErrors();
    clock.Sleep(kPoll);
  }
  // As long as it is not reaped, its number is no other group's.
  kill(-static_cast<pid_t>(pid_), SIGKILL);
  const absl::Duration killed = clock.Monotonic();
  while (!exit_ && clock.Monotonic() < killed + kKillLimit) {
    const absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(pid_);
    if (!exit.ok()) break;
    exit_ = *exit;
    if (!exit_) clock.Sleep(kPoll);
  }
  pid_ = -1;
  ended_ = true;
  ReadErrors();
  LogErrors(/*all=*/true);
  Close(output_);
  Close(errors_);
}

}  // namespace espalier
