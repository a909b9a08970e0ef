#include "worker/serve/http_server.h"

#include <httplib.h>

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

constexpr int kReadSeconds = 10, kWriteSeconds = 30, kIdleSeconds = 3;

// The name in a Host header, without its port: "127.0.0.1:8080", "[::1]:8080".
std::string HostName(const std::string& host) {
  if (absl::StartsWith(host, "[")) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

// In a time that does not tell how much of it is right.
bool SameKey(const std::string& given, const std::string& key) {
  unsigned char differ = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    differ |= static_cast<unsigned char>(given[i] ^ key[i % key.size()]);
  }
  return differ == 0;
}

class OnHttplib final : public HttpServer {
 public:
  OnHttplib(const Options& options, Handle handle, Refuse refuse)
      : options_(options), handle_(std::move(handle)), refuse_(std::move(refuse)) {
    server_.new_task_queue = [threads = options.threads] {
      return new httplib::ThreadPool(static_cast<size_t>(threads));
    };
    server_.set_payload_max_length(options.most_body_bytes);
    server_.set_read_timeout(kReadSeconds);
    server_.set_write_timeout(kWriteSeconds);
    server_.set_keep_alive_timeout(kIdleSeconds);
    server_.set_keep_alive_max_count(1000);
    server_.set_tcp_nodelay(true);
    // Its default lets two servers share a port.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    // Paths of GET need no patterns that way. What has a body is answered when that is read, also
    // where it is refused: what is left of it would be taken for the connection's next request. But
    // the library bounds only what is as long as it says, so nothing else is read.
    server_.set_pre_routing_handler([this](const httplib::Request& from, httplib::Response& to) {
      using Response = httplib::Server::HandlerResponse;
      const auto [status, why] = Unbounded(from);
      if (status != 0) {
        GiveAndEnd(refuse_(status, why), to);
        return Response::Handled;
      }
      if (from.method != "GET") return Response::Unhandled;
      Answer(from, to);
      return Response::Handled;
    });
    for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
      server_.Post(
          path, [this](const httplib::Request& from, httplib::Response& to) { Answer(from, to); });
    }
    server_.set_error_handler([this](const httplib::Request&, httplib::Response& to) {
      const bool answered = !to.body.empty() || to.has_header("Connection");  // GiveAndEnd
      if (!answered) Give(refuse_(to.status, WhatIsWrong(to.status)), to);
    });
    server_.set_exception_handler(
        [this](const httplib::Request&, httplib::Response& to, auto&&...) {
          Give(refuse_(500, "the server failed to answer"), to);
        });
  }
  ~OnHttplib() override { Stop(); }

  absl::Status Bind() {
    port_ = options_.port;
    const bool bound = options_.port == 0 ? (port_ = server_.bind_to_any_port(options_.host)) > 0
                                          : server_.bind_to_port(options_.host, options_.port);
    if (bound) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", options_.host, ":", options_.port,
        "; is the port taken, or the address another machine's? --port 0 takes one that is free"));
  }

  int port() const override { return port_; }
  void Start() override {
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      ended_ = true;
    });
  }
  void Stop() override {
    if (!thread_.joinable()) return;
    // What has not begun to listen cannot be stopped.
    while (!server_.is_running() && !ended_) std::this_thread::yield();
    server_.stop();
    thread_.join();
  }

 private:
  void Answer(const httplib::Request& from, httplib::Response& to) const {
    const std::pair<int, std::string> wrong = NotAllowed(from);
    Give(wrong.first != 0 ? refuse_(wrong.first, wrong.second)
                          : handle_({from.method, from.path, from.body}),
         to);
  }

  std::pair<int, std::string> NotAllowed(const httplib::Request& from) const {
    if (!options_.api_key.empty()) {
      const std::string given = from.get_header_value("Authorization");
      absl::string_view key = given;
      if (absl::ConsumePrefix(&key, "Bearer ") && SameKey(std::string(key), options_.api_key)) {
        return {};
      }
      return {401, "no key, or not the right one; send the header 'Authorization: Bearer KEY'"};
    }
    // A page of the web in a browser on this machine must not reach what needs no key: neither by
    // a name of its own for this machine, nor by what browsers send without asking.
    const std::string host = from.get_header_value("Host");
    if (!host.empty() && !IsLoopbackHost(HostName(host))) {
      return {403, absl::StrCat("the request is for the host '", host,
                                "'; without --api-key only localhost is served")};
    }
    if (from.method == "POST" &&
        !absl::StartsWith(from.get_header_value("Content-Type"), "application/json")) {
      return {415,
              "the body is not said to be JSON; send the header 'Content-Type: "
              "application/json'"};
    }
    return {};
  }

  static std::pair<int, std::string> Unbounded(const httplib::Request& from) {
    if (from.has_header("Content-Encoding")) {
      return {415, "the body is compressed; send it as it is"};
    }
    const bool has_body = from.method == "POST" || from.method == "PUT" || from.method == "PATCH";
    if (from.has_header("Transfer-Encoding") || (has_body && !from.has_header("Content-Length"))) {
      return {411, "how long the body is is not said; send the header 'Content-Length: BYTES'"};
    }
    return {};
  }

  std::string WhatIsWrong(int status) const {
    switch (status) {
      case 404:
        return "no such place; there are /v1/chat/completions, /v1/completions, /v1/models and "
               "/health";
      case 413:
        return absl::StrCat("the body is longer than ", options_.most_body_bytes, " bytes");
      default:
        return "the request is no HTTP that this server knows";
    }
  }

  // The answer, whole, and no more requests of that connection.
  static void GiveAndEnd(const HttpResponse& from, httplib::Response& to) {
    to.status = from.status;
    to.set_header("Connection", "close");
    to.set_content_provider(from.body.size(), from.content_type.c_str(),
                            [body = from.body](size_t, size_t, httplib::DataSink& sink) {
                              sink.write(body.data(), body.size());
                              return false;
                            });
  }

  static void Give(HttpResponse from, httplib::Response& to) {
    to.status = from.status;
    if (from.retry_after_seconds > 0) {
      to.set_header("Retry-After", std::to_string(from.retry_after_seconds));
    }
    if (!from.stream) {
      to.set_content(from.body, from.content_type.c_str());
      return;
    }
    to.set_header("Cache-Control", "no-cache");
    to.set_chunked_content_provider(
        from.content_type.c_str(),
        [stream = std::move(from.stream)](size_t, httplib::DataSink& sink) {
          bool reads = true;
          const bool complete = stream([&](const std::string& bytes) {
            reads = reads &&
                    (bytes.empty() ? sink.is_writable() : sink.write(bytes.data(), bytes.size()));
            return reads;
          });
          if (reads && complete) sink.done();
          return reads && complete;
        });
  }

  const Options options_;
  const Handle handle_;
  const Refuse refuse_;
  httplib::Server server_;
  std::atomic<bool> ended_ = false;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace

bool IsLoopbackHost(const std::string& host) {
  return host == "127.0.0.1" || host == "::1" || host == "localhost";
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const Options& options,
                                                               Handle handle, Refuse refuse) {
  if (!IsLoopbackHost(options.host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--host is ", options.host,
        ", where others on the way would read all that is asked and answered; allowed: 127.0.0.1, "
        "::1, localhost. From another machine: ssh -L 8080:127.0.0.1:8080 THIS_MACHINE"));
  }
  auto server = std::make_unique<OnHttplib>(options, std::move(handle), std::move(refuse));
  if (const absl::Status bound = server->Bind(); !bound.ok()) return bound;
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace espalier
