#include "tests/worker/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace espalier {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr absl::Duration kPoll = absl::Milliseconds(5);

// Only calls that are safe between fork and exec.
[[noreturn]] void BecomeProgram(char* const* arguments, int log) {
  setsid();
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execvp(arguments[0], arguments);
  _exit(127);
}

}  // namespace

Child::Child(std::vector<std::string> command, const std::string& log) : log_(log) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  pid_ = fork();
  if (pid_ == 0) BecomeProgram(arguments.data(), file);
  close(file);
}

Child::~Child() {
  if (pid_ < 0 || !running()) return;
  kill(pid_, SIGTERM);  // mpirun ends its ranks
  Wait();
}

void Child::Kill() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

bool Child::running() {
  if (pid_ < 0) return false;
  int state = 0;
  if (waitpid(pid_, &state, WNOHANG) == 0) return true;
  code_ = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  pid_ = -1;
  return false;
}

int Child::Wait() {
  const absl::Duration end = RealClock().Monotonic() + kPatience;
  while (running()) {
    if (RealClock().Monotonic() > end) {
      kill(-pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      pid_ = -1;
      return -1;
    }
    RealClock().Sleep(kPoll);
  }
  return code_;
}

std::string Child::output() const {
  std::stringstream text;
  text << std::ifstream(log_).rdbuf();
  return text.str();
}

Ended RunToEnd(std::vector<std::string> command, const std::string& log) {
  Child child(std::move(command), log);
  const int code = child.Wait();
  return {code, child.output()};
}

bool WaitUntil(Child& child, const std::function<bool()>& condition) {
  const absl::Duration end = RealClock().Monotonic() + kPatience;
  while (!condition()) {
    if (!child.running() || RealClock().Monotonic() > end) return condition();
    RealClock().Sleep(kPoll);
  }
  return true;
}

std::string WorkerProgram() {
  const char* folder = std::getenv("ESPALIER_BIN");
  return absl::StrCat(folder == nullptr ? "bin" : folder, "/espalier-worker");
}

std::vector<std::string> MpirunWorker(int ranks, const std::string& folder,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {
      "env",
      "TMPDIR=/tmp",  // macOS gives a long one, and Open MPI puts sockets there
      "mpirun",
      "--oversubscribe",
      "-np",
      absl::StrCat(ranks),
      "sh",
      "-c",
      absl::StrCat("echo $$ > ", folder, "/pid-$OMPI_COMM_WORLD_RANK; exec \"$@\""),
      "sh",
      WorkerProgram()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace espalier
