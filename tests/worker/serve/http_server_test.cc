#include "worker/serve/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <thread>

namespace espalier {
namespace {

constexpr char kPath[] = "/v1/completions";

class Http : public testing::Test {
 protected:
  void Listen(HttpServer::Options options) {
    options.port = 0;
    absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Listen(
        options, [this](const HttpRequest& request) { return handle_(request); },
        [](int status, const std::string& message) {
          return HttpResponse{.status = status, .body = message};
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->Start();
  }
  httplib::Client Client() { return httplib::Client("127.0.0.1", server_->port()); }
  int Post(const httplib::Headers& headers, const std::string& body,
           const char* type = "application/json") {
    const auto result = Client().Post(kPath, headers, body, type);
    return result ? result->status : -1;
  }

  std::function<HttpResponse(const HttpRequest&)> handle_ = [](const HttpRequest& request) {
    return HttpResponse{.body = request.method + request.path + request.body};
  };
  std::unique_ptr<HttpServer> server_;
};

TEST_F(Http, AnswersGetAndPost) {
  Listen({});
  EXPECT_EQ(Client().Get("/v1/models")->body, "GET/v1/models");
  EXPECT_EQ(Client().Post(kPath, "{}", "application/json")->body, "POST/v1/completions{}");
  EXPECT_EQ(Client().Post("/other", "{}", "application/json")->status, 404);
}

TEST_F(Http, AsksForTheKey) {
  Listen({.api_key = "secret"});
  EXPECT_EQ(Post({}, "{}"), 401);
  EXPECT_EQ(Post({{"Authorization", "Bearer secre"}}, "{}"), 401);
  EXPECT_EQ(Post({{"Authorization", "Bearer secret2"}}, "{}"), 401);
  EXPECT_EQ(Post({{"Authorization", "Bearer secret"}}, "{}"), 200);
  EXPECT_EQ(Client().Get("/v1/models")->status, 401);
}

TEST_F(Http, PagesOfTheWebDoNotReachWhatNeedsNoKey) {
  Listen({});
  EXPECT_EQ(Post({{"Host", "attacker.example"}}, "{}"), 403);
  EXPECT_EQ(Post({{"Host", "localhost:99"}}, "{}"), 200);
  EXPECT_EQ(Post({}, "{}", "text/plain"), 415);
}

TEST_F(Http, BodiesAreBounded) {
  Listen({.most_body_bytes = 1000});
  EXPECT_EQ(Post({}, std::string(1000, 'x')), 200);
  EXPECT_EQ(Post({}, std::string(1001, 'x')), 413);
}

// The library reads these without a bound; a few bytes may unpack to any number.
TEST_F(Http, ChunkedAndPackedBodiesAreRefusedUnread) {
  Listen({.most_body_bytes = 1000});
  httplib::Client client = Client();
  const auto chunked = client.Post(
      kPath,
      [](size_t, httplib::DataSink& sink) {
        sink.write("{}", 2);
        sink.done();
        return true;
      },
      "application/json");
  ASSERT_TRUE(chunked) << httplib::to_string(chunked.error());
  EXPECT_EQ(chunked->status, 411);
  EXPECT_THAT(chunked->body, testing::HasSubstr("Content-Length"));
  EXPECT_EQ(Post({{"Content-Encoding", "gzip"}}, "{}"), 415);
  EXPECT_EQ(Post({}, "{}"), 200) << "others are answered as before";
}

TEST_F(Http, OtherMachinesAreNotLetInAtAll) {
  for (const char* host : {"0.0.0.0", "::", "203.0.113.1"}) {
    const auto server = HttpServer::Listen({.host = host, .port = 0, .api_key = "x"}, handle_, {});
    EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument) << host;
    EXPECT_THAT(std::string(server.status().message()), testing::HasSubstr("ssh -L"));
  }
}

TEST_F(Http, APortIsOneServersAlone) {
  Listen({});
  EXPECT_EQ(HttpServer::Listen({.port = server_->port()}, handle_, {}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(Http, AnAnswerThatIsNotCompleteEndsTheConnection) {
  handle_ = [](const HttpRequest&) {
    return HttpResponse{.stream = [](const HttpSend& send) {
      send("{");
      return false;
    }};
  };
  Listen({});
  EXPECT_EQ(Post({}, "{}"), -1);
}

TEST_F(Http, AStreamArrivesInPiecesAndEndsWhenNobodyReads) {
  std::atomic<bool> noticed = false;
  handle_ = [&](const HttpRequest&) {
    return HttpResponse{.content_type = "text/event-stream", .stream = [&](const HttpSend& send) {
                          while (send("piece ")) std::this_thread::yield();
                          noticed = !send("");
                          return false;
                        }};
  };
  Listen({});
  std::string got;
  Client().Get("/v1/models", [&](const char* data, size_t size) {
    got.append(data, size);
    return got.size() < 100;
  });
  EXPECT_THAT(got, testing::StartsWith("piece piece "));
  server_->Stop();
  EXPECT_TRUE(noticed);
}

TEST_F(Http, WhatThrowsIsAnError) {
  handle_ = [](const HttpRequest&) -> HttpResponse { throw std::bad_alloc(); };
  Listen({});
  EXPECT_EQ(Post({}, "{}"), 500);
}

}  // namespace
}  // namespace espalier
