#include "common/rpc/probe.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/openssl.h"

namespace espalier {
namespace {

using Addresses = std::unique_ptr<addrinfo, openssl::Deleter<freeaddrinfo>>;

absl::StatusOr<Addresses> Resolve(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (error == 0) return Addresses(found);
  return absl::UnavailableError(
      absl::StrCat("the host name '", address.host, "' is not known here: ", gai_strerror(error)));
}

int PollMs(absl::Duration timeout) {
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(timeout)));
}

bool WaitFor(int fd, short events, absl::Duration timeout) {
  pollfd entry = {.fd = fd, .events = events, .revents = 0};
  return poll(&entry, 1, PollMs(timeout)) > 0;
}

#ifdef __APPLE__
constexpr bool kOnMac = true;
#else
constexpr bool kOnMac = false;
#endif

// 0 or errno.
int ConnectOne(int fd, const addrinfo& to, absl::Duration timeout) {
  fcntl(fd, F_SETFL, O_NONBLOCK);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  if (connect(fd, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!WaitFor(fd, POLLOUT, timeout)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

// Writing to a connection that the peer has closed must not kill the program: MSG_NOSIGNAL where
// there is one (Linux, new macOS), SO_NOSIGPIPE elsewhere.
#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
void SilenceBrokenPipe(int) {}
#else
constexpr int kSendFlags = 0;
void SilenceBrokenPipe(int fd) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
}
#endif

openssl::Connection MakeConnection(SSL_CTX* context, const ProbeIdentity& own) {
  // The server's certificate is judged afterwards, by VerifyCertificate, which explains itself.
  SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
  if (!own.certificate.empty()) {
    const openssl::Certificate certificate = openssl::ParseCertificate(own.certificate);
    const openssl::Key key = openssl::ParseKey(own.key);
    SSL_CTX_use_certificate(context, certificate.get());
    SSL_CTX_use_PrivateKey(context, key.get());
  }
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context, kHttp2, sizeof kHttp2);
  openssl::Connection connection(SSL_new(context));
  SSL_set_bio(connection.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_connect_state(connection.get());
  return connection;
}

absl::Status NotTls(absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("no TLS handshake: ", why));
}

absl::Status SendPending(SSL* connection, int fd) {
  char buffer[16384];
  int count = 0;
  while ((count = BIO_read(SSL_get_wbio(connection), buffer, sizeof buffer)) > 0) {
    if (send(fd, buffer, static_cast<size_t>(count), kSendFlags) != count) {
      return NotTls("the connection was closed");
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveSome(SSL* connection, int fd, absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration() || !WaitFor(fd, POLLIN, timeout)) {
    return absl::UnavailableError("the server accepts connections but does not answer");
  }
  char buffer[16384];
  const ssize_t count = recv(fd, buffer, sizeof buffer, 0);
  if (count <= 0) return NotTls("the connection was closed");
  BIO_write(SSL_get_rbio(connection), buffer, static_cast<int>(count));
  return absl::OkStatus();
}

}  // namespace

std::string WhyUnreachable(const HostPort& address, int error, bool on_mac) {
  if (error == ECONNREFUSED) {
    return absl::StrCat("nothing listens on ", address.ToString(),
                        "; start espalierd there, or give with --coordinator the address, or on "
                        "its machine the state folder, of the one you mean");
  }
  std::string text = absl::StrCat("cannot reach ", address.ToString(), ": ", std::strerror(error));
  if (error == ETIMEDOUT) absl::StrAppend(&text, "; is the machine on, is a firewall in between?");
  if (error == EHOSTUNREACH && on_mac) {
    absl::StrAppend(&text,
                    "; where the other machine is on, macOS keeps the programs of this terminal "
                    "from the local network: start them from Terminal.app, over ssh or by launchd, "
                    "or allow it in System Settings, Privacy & Security, Local Network");
  }
  return text;
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

int TryUnixSocket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  const Socket socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  if (socket.fd() < 0) return errno;
  const auto* to = reinterpret_cast<const sockaddr*>(&address);
  return connect(socket.fd(), to, sizeof address) == 0 ? 0 : errno;
}

absl::StatusOr<Socket> ConnectTcp(const HostPort& address, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const Addresses addresses, Resolve(address));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* to = addresses.get(); to != nullptr; to = to->ai_next) {
    Socket socket(::socket(to->ai_family, SOCK_STREAM, 0));
    if (socket.fd() < 0) {
      error = errno;
      continue;
    }
    SilenceBrokenPipe(socket.fd());
    error = ConnectOne(socket.fd(), *to, timeout);
    if (error == 0) return socket;
  }
  return absl::UnavailableError(WhyUnreachable(address, error, kOnMac));
}

absl::StatusOr<std::vector<std::string>> FetchServerChain(const Socket& socket,
                                                          const ProbeIdentity& own,
                                                          absl::Duration timeout) {
  Clock& clock = RealClock();
  const absl::Duration end = clock.Monotonic() + timeout;
  const openssl::Context context(SSL_CTX_new(TLS_client_method()));
  const openssl::Connection connection = MakeConnection(context.get(), own);
  while (true) {
    const int result = SSL_do_handshake(connection.get());
    const int why = SSL_get_error(connection.get(), result);
    RETURN_IF_ERROR(SendPending(connection.get(), socket.fd()));
    if (result == 1) break;
    if (why != SSL_ERROR_WANT_READ) return NotTls(openssl::TakeError());
    RETURN_IF_ERROR(ReceiveSome(connection.get(), socket.fd(), end - clock.Monotonic()));
  }
  // Its own comes first; SSL_get_peer_certificate has no name that 1.1.1 and 3.x share.
  const STACK_OF(X509)* chain = SSL_get_peer_cert_chain(connection.get());
  if (chain == nullptr || sk_X509_num(chain) == 0) return NotTls("the server has no certificate");
  std::vector<std::string> certificates;
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    const openssl::Bio bio(BIO_new(BIO_s_mem()));
    PEM_write_bio_X509(bio.get(), sk_X509_value(chain, i));
    certificates.push_back(openssl::BioText(bio.get()));
  }
  return certificates;
}

}  // namespace espalier
