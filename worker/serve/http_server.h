// HttpServer: requests over HTTP to a function, and its answers back, whole or in pieces. Knows
// who may ask, sizes and times, nothing of what is asked. Used by openai_server.h. The function is
// called by many threads at once.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

struct HttpRequest {
  std::string method;  // GET or POST
  std::string path;
  std::string body;
};

// What an answer that comes in pieces sends: false once nobody reads any more. Nothing (""): asks
// for that alone.
using HttpSend = std::function<bool(const std::string& bytes)>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  int retry_after_seconds = 0;  // 0: not said
  // Instead of a body: sends the answer and returns at its end, by the thread of the request.
  // False: it is not complete, and the connection ends.
  std::function<bool(const HttpSend& send)> stream;
};

class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    int port = 8080;      // 0: one that is free
    std::string api_key;  // empty: whoever is on this machine
    size_t most_body_bytes = 8 << 20;
    int threads = 96;  // requests that are being answered at a time
  };
  using Handle = std::function<HttpResponse(const HttpRequest&)>;
  // An error that HTTP has a number for, as a response.
  using Refuse = std::function<HttpResponse(int status, const std::string& message)>;

  // Listens from now on, and answers once Start is called. INVALID_ARGUMENT for an address beyond
  // this machine, where all would be read by whoever listens; UNAVAILABLE where the address cannot
  // be had.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const Options& options, Handle handle,
                                                            Refuse refuse);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  virtual void Start() = 0;
  // Takes no more connections, and returns when all requests are answered.
  virtual void Stop() = 0;
};

// 127.0.0.1, ::1, localhost.
bool IsLoopbackHost(const std::string& host);

}  // namespace espalier
