#include "common/platform/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

extern char** environ;

namespace espalier {
namespace {

absl::Status Errno(absl::string_view what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<std::string> ResolveProgram(const std::string& program) {
  if (absl::StrContains(program, '/')) {
    if (access(program.c_str(), X_OK) == 0) return program;
    return absl::NotFoundError(absl::StrCat(
        "cannot run '", program, "': ", std::strerror(errno),
        errno == EACCES ? "; make it executable (chmod +x), or name what runs it before it" : ""));
  }
  const char* path = std::getenv("PATH");
  for (absl::string_view folder : absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
    std::string candidate = absl::StrCat(folder.empty() ? "." : folder, "/", program);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("there is no program '", program,
                                          "' in PATH; install it or give its full path"));
}

std::vector<std::string> EnvironmentOf(const SpawnOptions& options) {
  const std::vector<std::string>& added = options.environment;
  std::vector<std::string> result = added;
  if (options.inherit == SpawnOptions::Inherit::kNothing) return result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    absl::string_view name =
        absl::string_view(*entry).substr(0, absl::string_view(*entry).find('='));
    const bool replaced = std::any_of(added.begin(), added.end(), [&](const std::string& one) {
      return absl::StartsWith(one, absl::StrCat(name, "="));
    });
    if (!replaced) result.push_back(*entry);
  }
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Everything the child needs, made before fork: between fork and exec only async-signal-safe calls
// are allowed, because other threads may have held any lock.
struct ChildPlan {
  const char* program;
  char* const* argv;
  char* const* envp;
  const char* folder;  // null: stays
  SpawnOptions::Apart apart;
  int gate;
  // Told once the session exists.
  int started;
  int input;
  int output;
  int errors;
};

[[noreturn]] void FailChild(const char* what) {
  constexpr char kMessage[] = "cannot start the program: ";
  const char* reason = std::strerror(errno);
  (void)!write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  (void)!write(STDERR_FILENO, what, std::strlen(what));
  (void)!write(STDERR_FILENO, ": ", 2);
  (void)!write(STDERR_FILENO, reason, std::strlen(reason));
  (void)!write(STDERR_FILENO, "\n", 1);
  _exit(127);
}

// Above all the state folder's lock and the listening sockets go.
void CloseAllBut(std::array<int, 5> kept) {
  std::sort(kept.begin(), kept.end());
  int first = STDERR_FILENO + 1;
  for (const int fd : kept) {
    if (fd < first) continue;
    if (fd > first) CloseDescriptors(first, fd - 1);
    first = fd + 1;
  }
  CloseDescriptors(first, INT_MAX);
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  if (plan.apart == SpawnOptions::Apart::kSession) {
    setsid();
  } else {
    setpgid(0, 0);
  }
  char byte = 0;
  CloseAllBut({plan.gate, plan.started, plan.input, plan.output, plan.errors});
  (void)!write(plan.started, &byte, 1);
  ssize_t got = 0;
  do {
    got = read(plan.gate, &byte, 1);
  } while (got < 0 && errno == EINTR);
  if (got != 1) _exit(0);  // the parent went before it opened the gate
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  dup2(plan.input, STDIN_FILENO);
  dup2(plan.output, STDOUT_FILENO);
  dup2(plan.errors, STDERR_FILENO);
  CloseDescriptors(STDERR_FILENO + 1, INT_MAX);
  if (plan.folder != nullptr && chdir(plan.folder) != 0) FailChild(plan.folder);
  execve(plan.program, plan.argv, plan.envp);
  FailChild(plan.program);
}

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct Pipe {
  Fd reader;
  Fd writer;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe(ends) != 0) return Errno("cannot make a pipe");
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  fcntl(ends[1], F_SETFD, FD_CLOEXEC);
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

}  // namespace

bool IsAlive(const ProcessIdentity& process) {
  absl::StatusOr<ProcessIdentity> now = IdentifyProcess(process.pid);
  return now.ok() && *now == process;
}

bool IsOfBoot(const ProcessIdentity& process, absl::string_view boot_id) {
  return absl::StartsWith(process.start, absl::StrCat(boot_id, "/"));
}

bool IsOfThisBoot(const ProcessIdentity& process) { return IsOfBoot(process, BootId()); }

int SignalSession(const ProcessIdentity& leader, int signal) {
  // While a session lives its leader's pid is not given away, so another process there means that
  // nothing of the session is left.
  absl::StatusOr<ProcessIdentity> now = IdentifyProcess(leader.pid);
  if (!IsOfThisBoot(leader) || (now.ok() && *now != leader)) return 0;
  int living = 0;
  for (int64_t pid : ListProcessIds()) {
    if (getsid(static_cast<pid_t>(pid)) != leader.pid || !IdentifyProcess(pid).ok()) continue;
    ++living;
    kill(static_cast<pid_t>(pid), signal);
  }
  return living;
}

absl::StatusOr<GatedProcess> GatedProcess::Spawn(const SpawnOptions& options) {
  if (options.argv.empty()) return absl::InvalidArgumentError("no program to start");
  ASSIGN_OR_RETURN(std::string program, ResolveProgram(options.argv[0]));
  Fd log(-1);
  if (options.output < 0 || options.errors < 0) {
    log = Fd(open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (log.get() < 0) return Errno(absl::StrCat("cannot open the log ", options.log_path));
  }
  Fd null_input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null_input.get() < 0) return Errno("cannot open /dev/null");
  ASSIGN_OR_RETURN(Pipe gate, MakePipe());
  ASSIGN_OR_RETURN(Pipe started, MakePipe());
  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> environment = EnvironmentOf(options);
  std::vector<char*> argv = Pointers(arguments);
  std::vector<char*> envp = Pointers(environment);
  const ChildPlan plan = {.program = program.c_str(),
                          .argv = argv.data(),
                          .envp = envp.data(),
                          .folder = options.folder.empty() ? nullptr : options.folder.c_str(),
                          .apart = options.apart,
                          .gate = gate.reader.get(),
                          .started = started.writer.get(),
                          .input = options.input < 0 ? null_input.get() : options.input,
                          .output = options.output < 0 ? log.get() : options.output,
                          .errors = options.errors < 0 ? log.get() : options.errors};
  const pid_t pid = fork();
  if (pid < 0) return Errno(absl::StrCat("cannot start ", program));
  if (pid == 0) {
    close(gate.writer.get());
    RunChild(plan);
  }
  close(started.writer.release());
  char byte = 0;
  while (read(started.reader.get(), &byte, 1) < 0 && errno == EINTR) {
  }
  absl::StatusOr<ProcessIdentity> identity = IdentifyProcess(pid);
  if (!identity.ok()) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return identity.status();
  }
  return GatedProcess(*std::move(identity), gate.writer.release());
}

GatedProcess::GatedProcess(GatedProcess&& other) noexcept
    : identity_(std::move(other.identity_)), gate_(std::exchange(other.gate_, -1)) {}

GatedProcess& GatedProcess::operator=(GatedProcess&& other) noexcept {
  if (this != &other) {
    if (gate_ >= 0) close(gate_);
    identity_ = std::move(other.identity_);
    gate_ = std::exchange(other.gate_, -1);
  }
  return *this;
}

GatedProcess::~GatedProcess() {
  if (gate_ >= 0) close(gate_);
}

void GatedProcess::Release() {
  if (gate_ < 0) return;
  const char byte = 1;
  (void)!write(gate_, &byte, 1);
  close(std::exchange(gate_, -1));
}

absl::StatusOr<std::optional<ExitStatus>> PollChild(int64_t pid) {
  int status = 0;
  const pid_t got = waitpid(static_cast<pid_t>(pid), &status, WNOHANG);
  if (got == 0) return std::nullopt;
  if (got < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", pid, " is not a child of this one: ", std::strerror(errno)));
  }
  ExitStatus exit;
  if (WIFEXITED(status)) exit.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) exit.signal = WTERMSIG(status);
  return exit;
}

}  // namespace espalier
