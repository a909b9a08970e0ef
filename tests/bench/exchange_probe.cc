// Times all-reduces under mpirun and says how many bytes each TCP connection carried: Espalier's
// exchange, or MPI_Allreduce as its peer. Rank 0 prints one JSON line. Run by bench_exchange.sh.
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

namespace {

struct Arguments {
  std::string algorithm = "espalier";
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
  CLI::App app("exchange_probe: the speed of an all-reduce, and what its connections carry");
  app.add_option("--algorithm", arguments.algorithm, "espalier or mpi_allreduce");
  app.add_option("--networks", arguments.networks, "CIDR of MPI's network");
  app.add_option("--links", arguments.links, "TCP links per peer");
  app.add_option("--socket-buffer-bytes", arguments.socket_buffer_bytes, "0: the system's");
  app.add_option("--bytes", arguments.bytes, "bytes to reduce");
  app.add_option("--chunk-bytes", arguments.chunk_bytes, "bytes of a message");
  app.add_option("--depth", arguments.depth, "messages in flight");
  app.add_option("--wire", arguments.wire)->check(CLI::IsMember({"fp32", "bf16", "int8"}));
  app.add_option("--repeats", arguments.repeats, "timed all-reduces");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return arguments;
}

// One way to sum `values` over all ranks.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual int rank() const = 0;
  virtual void AllReduce(std::vector<float>& values) = 0;
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
    if (arguments.wire == "bf16") wire_ = espalier::WireType::kBf16;
    if (arguments.wire == "int8") wire_ = espalier::WireType::kInt8;
    auto started = espalier::MpiCollective::Start(options, espalier::RealClock());
    if (!started.ok()) Leave(started.status());
    collective_ = *std::move(started);
  }
  int rank() const override { return static_cast<int>(collective_->rank().value()); }
  void AllReduce(std::vector<float>& values) override {
    if (wire_ == espalier::WireType::kInt8) residual_.resize(values.size());
    const absl::Status status = collective_->Wait(
        collective_->StartAllReduce({absl::MakeSpan(values), wire_, absl::MakeSpan(residual_)}));
    if (!status.ok()) Leave(status);
  }
  void Finish() override { (void)collective_->Finish(absl::Minutes(1)); }

 private:
  [[noreturn]] static void Leave(const absl::Status& status) {
    std::fprintf(stderr, "exchange_probe: %s\n", status.ToString().c_str());
    _exit(1);
  }
  std::unique_ptr<espalier::MpiCollective> collective_;
  espalier::WireType wire_ = espalier::WireType::kFp32;
  std::vector<float> residual_;  // of int8
};

class MpiAllreduce : public Subject {
 public:
  MpiAllreduce() {
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  }
  int rank() const override { return rank_; }
  void AllReduce(std::vector<float>& values) override {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }
  void Finish() override { MPI_Finalize(); }

 private:
  int rank_ = 0;
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
  if (arguments.algorithm == "mpi_allreduce") {
    subject = std::make_unique<MpiAllreduce>();
  } else {
    subject = std::make_unique<Espalier>(arguments);
  }
  std::vector<float> values(arguments.bytes / sizeof(float), 1.0F);
  subject->AllReduce(values);
  std::vector<double> seconds;
  for (int i = 0; i < arguments.repeats; ++i) {
    const double begin = Seconds();
    subject->AllReduce(values);
    seconds.push_back(Seconds() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  if (subject->rank() == 0) {
    const auto rate = [&](double s) { return static_cast<double>(arguments.bytes) / s * 1e-9; };
    const nlohmann::json line = {{"algorithm", arguments.algorithm},
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
