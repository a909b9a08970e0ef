// Times an operation of the exchange under mpirun and says how many bytes each TCP connection
// carried: Espalier's, or what MPI offers for the same, as its peer. Rank 0 prints one JSON line.
// Run by bench_exchange.sh.
#include <linux/tcp.h>
#include <mpi.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/collective/mpi_collective.h"
#include "worker/collective/partition.h"

namespace {

struct Arguments {
  std::string algorithm = "espalier";
  std::string operation = "all_reduce";
  std::string networks = "127.0.0.0/8";
  int links = 4;
  int socket_buffer_bytes = 4 << 20;
  int64_t bytes = 64 << 20;
  int64_t chunk_bytes = 256 << 10;
  int depth = 8;
  int repeats = 5;
  std::string wire = "fp32";
};

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("exchange_probe: the speed of the exchange, and what its connections carry");
  app.add_option("--algorithm", arguments.algorithm)->check(CLI::IsMember({"espalier", "mpi"}));
  app.add_option("--operation", arguments.operation)
      ->check(CLI::IsMember({"all_reduce", "reduce_scatter", "all_gather", "broadcast"}));
  app.add_option("--networks", arguments.networks, "CIDR of MPI's network");
  app.add_option("--links", arguments.links, "TCP links per peer");
  app.add_option("--socket-buffer-bytes", arguments.socket_buffer_bytes, "0: the system's");
  app.add_option("--bytes", arguments.bytes, "bytes of the whole span");
  app.add_option("--chunk-bytes", arguments.chunk_bytes, "bytes of a message");
  app.add_option("--depth", arguments.depth, "messages in flight");
  app.add_option("--wire", arguments.wire)->check(CLI::IsMember({"fp32", "bf16", "int8"}));
  app.add_option("--repeats", arguments.repeats, "timed operations");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return arguments;
}

// One way to carry out the operation on `values`, whose parts are as equal as possible.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual int rank() const = 0;
  virtual void Perform(std::vector<float>& values) = 0;
  virtual void Finish() = 0;
};

class Espalier : public Subject {
 public:
  explicit Espalier(const Arguments& arguments) {
    espalier::MpiOptions options;
    options.transport = {.links = arguments.links,
                         .networks = arguments.networks,
                         .socket_buffer_bytes = arguments.socket_buffer_bytes};
    options.chunk_bytes = arguments.chunk_bytes;
    options.depth = arguments.depth;
    options.failure_timeout = absl::Minutes(2);
    if (arguments.operation == "reduce_scatter") kind_ = Kind::kReduceScatter;
    if (arguments.operation == "all_gather") kind_ = Kind::kAllGather;
    if (arguments.operation == "broadcast") kind_ = Kind::kBroadcast;
    if (arguments.wire == "bf16") wire_ = espalier::WireType::kBf16;
    if (arguments.wire == "int8") wire_ = espalier::WireType::kInt8;
    auto started = espalier::MpiCollective::Start(options, espalier::RealClock());
    if (!started.ok()) Leave(started.status());
    collective_ = *std::move(started);
  }
  int rank() const override { return static_cast<int>(collective_->rank().value()); }
  void Perform(std::vector<float>& values) override {
    if (wire_ == espalier::WireType::kInt8) residual_.resize(values.size());
    const absl::Status status = collective_->Wait(collective_->Start(
        {.kind = kind_,
         .reduction = {absl::MakeSpan(values), wire_, absl::MakeSpan(residual_)},
         .bytes = {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)}}));
    if (!status.ok()) Leave(status);
  }
  void Finish() override { (void)collective_->Finish(absl::Minutes(1)); }

 private:
  using Kind = espalier::Operation::Kind;
  [[noreturn]] static void Leave(const absl::Status& status) {
    std::fprintf(stderr, "exchange_probe: %s\n", status.ToString().c_str());
    _exit(1);
  }
  std::unique_ptr<espalier::MpiCollective> collective_;
  Kind kind_ = Kind::kAllReduce;
  espalier::WireType wire_ = espalier::WireType::kFp32;
  std::vector<float> residual_;  // of int8
};

class Mpi : public Subject {
 public:
  explicit Mpi(const Arguments& arguments) : operation_(arguments.operation) {
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  int rank() const override { return rank_; }
  void Perform(std::vector<float>& values) override {
    std::vector<int> sizes, begins;
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto part = espalier::EqualPart(static_cast<int64_t>(values.size()), rank, ranks_);
      sizes.push_back(static_cast<int>(part.size()));
      begins.push_back(static_cast<int>(part.begin));
    }
    const auto size = static_cast<int>(values.size());
    if (operation_ == "all_reduce") {
      MPI_Allreduce(MPI_IN_PLACE, values.data(), size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (operation_ == "reduce_scatter") {
      MPI_Reduce_scatter(MPI_IN_PLACE, values.data(), sizes.data(), MPI_FLOAT, MPI_SUM,
                         MPI_COMM_WORLD);
    } else if (operation_ == "all_gather") {
      MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, values.data(), sizes.data(), begins.data(),
                     MPI_FLOAT, MPI_COMM_WORLD);
    } else {
      MPI_Bcast(values.data(), size, MPI_FLOAT, 0, MPI_COMM_WORLD);
      // The root returns before the others have it.
      MPI_Barrier(MPI_COMM_WORLD);
    }
  }
  void Finish() override { MPI_Finalize(); }

 private:
  const std::string operation_;
  int rank_ = 0;
  int ranks_ = 1;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// MB sent and received by each connection of this process that carried more than 1 MB.
nlohmann::json Connections() {
  nlohmann::json connections = nlohmann::json::array();
  for (int fd = 3; fd < 256; ++fd) {
    tcp_info info = {};
    socklen_t size = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    const auto sent = static_cast<int64_t>(info.tcpi_bytes_acked / 1000000);
    const auto received = static_cast<int64_t>(info.tcpi_bytes_received / 1000000);
    if (sent + received > 1) connections.push_back({sent, received});
  }
  return connections;
}

int Run(const Arguments& arguments) {
  std::unique_ptr<Subject> subject;
  if (arguments.algorithm == "mpi") {
    subject = std::make_unique<Mpi>(arguments);
  } else {
    subject = std::make_unique<Espalier>(arguments);
  }
  std::vector<float> values(arguments.bytes / sizeof(float), 1.0F);
  subject->Perform(values);
  std::vector<double> seconds;
  for (int i = 0; i < arguments.repeats; ++i) {
    const double begin = Seconds();
    subject->Perform(values);
    seconds.push_back(Seconds() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  if (subject->rank() == 0) {
    const auto rate = [&](double s) { return static_cast<double>(arguments.bytes) / s * 1e-9; };
    const nlohmann::json line = {{"algorithm", arguments.algorithm},
                                 {"operation", arguments.operation},
                                 {"links", arguments.links},
                                 {"wire", arguments.wire},
                                 {"chunk_bytes", arguments.chunk_bytes},
                                 {"depth", arguments.depth},
                                 {"bytes", arguments.bytes},
                                 {"gigabytes_per_second_median", rate(seconds[seconds.size() / 2])},
                                 {"gigabytes_per_second_best", rate(seconds.front())},
                                 {"gigabytes_per_second_worst", rate(seconds.back())},
                                 {"connections_megabytes_sent_received", Connections()}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  subject->Finish();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return Run(Parse(argc, argv)); }
