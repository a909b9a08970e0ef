#include "common/rpc/local_listener.h"

#include <fcntl.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/call.h"

namespace espalier {
namespace {

constexpr int kBacklog = 128;
constexpr int kOwnerOnly = 0600;
// When the system has no descriptor for a connection: how long to leave it in the queue.
constexpr int kPauseMs = 100;
constexpr int kStrangerLifeMs = 2000;

absl::Status Unavailable(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " the Unix socket ", path, ": ", std::strerror(errno)));
}

// The user at the other end, from the system.
absl::StatusOr<uid_t> PeerUser(int socket) {
#ifdef SO_PEERCRED  // Linux
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) return peer.uid;
#else  // macOS
  uid_t user = 0;
  gid_t group = 0;
  if (getpeereid(socket, &user, &group) == 0) return user;
#endif
  return absl::ErrnoToStatus(errno, "cannot tell who is at the other end of the socket");
}

absl::Status RemoveStale(const std::string& path) {
  struct stat entry;
  if (lstat(path.c_str(), &entry) != 0) return absl::OkStatus();
  if (!S_ISSOCK(entry.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is in the way: it is no socket, so not espalierd's; move it elsewhere"));
  }
  return unlink(path.c_str()) == 0 ? absl::OkStatus() : Unavailable("replace", path);
}

void SetFlags(int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

absl::StatusOr<int> Bind(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return Unavailable("make", path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) return Unavailable("make", path);
  SetFlags(fd);
  // Nobody can connect before listen(), so the mode is right before anybody can.
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      chmod(path.c_str(), kOwnerOnly) != 0 || listen(fd, kBacklog) != 0) {
    const absl::Status failed = Unavailable("listen on", path);
    close(fd);
    return failed;
  }
  return fd;
}

class RefusedCall : public grpc::ServerGenericBidiReactor {
 public:
  explicit RefusedCall(const absl::Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

}  // namespace

// A server that answers every call with a refusal: a connection that were just closed would tell
// its user nothing.
class LocalListener::Strangers : public grpc::CallbackGenericService {
 public:
  explicit Strangers(uid_t owner) : owner_(owner) {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(this);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kStrangerLifeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kStrangerLifeMs);
    server_ = builder.BuildAndStart();
  }
  ~Strangers() override {
    if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(RealClock().Now()));
  }

  grpc::Server* server() { return server_.get(); }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new RefusedCall(absl::PermissionDeniedError(absl::StrCat(
        "this socket answers only the user who runs espalierd (uid ", owner_,
        ") and root; ask them to start what you need, or for a certificate to reach it over TLS")));
  }

 private:
  const uid_t owner_;
  std::unique_ptr<grpc::Server> server_;
};

absl::StatusOr<std::unique_ptr<LocalListener>> LocalListener::Open(Options options) {
  RETURN_IF_ERROR(RemoveStale(options.path));
  ASSIGN_OR_RETURN(const int socket, Bind(options.path));
  int ends[2];
  if (pipe(ends) != 0) {
    close(socket);
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  SetFlags(ends[0]);
  SetFlags(ends[1]);
  return std::unique_ptr<LocalListener>(
      new LocalListener(std::move(options), socket, ends[0], ends[1]));
}

LocalListener::LocalListener(Options options, int socket, int stop_reader, int stop_writer)
    : options_(std::move(options)),
      socket_(socket),
      stop_reader_(stop_reader),
      stop_writer_(stop_writer),
      strangers_(std::make_unique<Strangers>(options_.owner)),
      thread_([this] { Accept(); }) {}

LocalListener::~LocalListener() {
  // First the name, so that nobody finds a socket that does not answer.
  unlink(options_.path.c_str());
  close(stop_writer_);
  thread_.join();
  close(stop_reader_);
  close(socket_);
}

void LocalListener::Accept() {
  while (true) {
    pollfd waits[] = {{.fd = stop_reader_, .events = POLLIN, .revents = 0},
                      {.fd = socket_, .events = POLLIN, .revents = 0}};
    if (poll(waits, 2, -1) < 0 && errno != EINTR) return;
    if (waits[0].revents != 0) return;
    if (waits[1].revents == 0) continue;
    const int connection = accept(socket_, nullptr, nullptr);
    if (connection >= 0) {
      Take(connection);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      poll(waits, 1, kPauseMs);
    }
  }
}

void LocalListener::Take(int connection) {
  SetFlags(connection);
  const absl::StatusOr<uid_t> user = PeerUser(connection);
  if (user.ok() && (*user == 0 || *user == options_.owner)) {
    grpc::AddInsecureChannelFromFd(options_.server, connection);
    return;
  }
  if (options_.refused) {
    options_.refused(user.ok() ? absl::StrCat("it came from uid ", *user)
                               : std::string(user.status().message()));
  }
  grpc::AddInsecureChannelFromFd(strangers_->server(), connection);
}

}  // namespace espalier
