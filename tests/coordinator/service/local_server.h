// A gRPC server on a free loopback port, for the tests of the services. Used by
// attach_service_test.cc, espalierd_process.h and operator_service_test.cc.
#pragma once

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>

namespace espalier {

class LocalServer {
 public:
  explicit LocalServer(grpc::Service* service,
                       const std::shared_ptr<grpc::ServerCredentials>& credentials =
                           grpc::InsecureServerCredentials()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    builder.RegisterService(service);
    server_ = builder.BuildAndStart();
  }
  ~LocalServer() { server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5)); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::shared_ptr<grpc::Channel> Channel() const {
    return grpc::CreateChannel(address(), grpc::InsecureChannelCredentials());
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A context whose call ends by itself in a broken test.
struct BoundedContext : grpc::ClientContext {
  BoundedContext() { set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60)); }
};

}  // namespace espalier
