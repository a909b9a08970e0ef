// The real prometheus of the system, with the configuration that deploy/prometheus ships, scraping
// an espalierd that runs a job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "tests/coordinator/service/espalierd_process.h"
#include "tests/coordinator/service/http_get.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

const std::string kDeployed = ESPALIER_SOURCE_DIR "/deploy/prometheus";

// The port, as Prometheus 2 and 3 log it; 0: not yet.
int PortInLog(const std::string& log) {
  static const std::regex listening("msg=\"Listening on\".* address=127\\.0\\.0\\.1:([0-9]+)");
  std::smatch match;
  return std::regex_search(log, match, listening) ? std::stoi(match[1]) : 0;
}

class Prometheus : public ::testing::Test {
 protected:
  ~Prometheus() override {
    if (process_) SignalSession(*process_, SIGKILL);
  }

  // Runs a program to its end; its exit status.
  int Run(const std::vector<std::string>& argv) {
    absl::StatusOr<GatedProcess> process =
        GatedProcess::Spawn({.argv = argv, .log_path = folder_.path("log")});
    EXPECT_TRUE(process.ok()) << process.status();
    process->Release();
    ExitStatus exit;
    EXPECT_TRUE(WaitUntil([&] {
      absl::StatusOr<std::optional<ExitStatus>> polled = PollChild(process->identity().pid);
      if (!polled.ok() || !polled->has_value()) return false;
      exit = **polled;
      return true;
    }));
    return exit.code;
  }

  // Starts prometheus with the shipped configuration, aimed at `metrics` and hurried up.
  void Start(const std::string& metrics) {
    folder_.Write("prometheus.yml", absl::StrReplaceAll(ReadFile(kDeployed + "/prometheus.yml"),
                                                        {{"127.0.0.1:9464", metrics},
                                                         {"rules.yml", kDeployed + "/rules.yml"},
                                                         {"interval: 5s", "interval: 1s"}}));
    absl::StatusOr<GatedProcess> process = GatedProcess::Spawn(
        {.argv = {"prometheus", "--config.file=" + folder_.path("prometheus.yml"),
                  "--storage.tsdb.path=" + folder_.path("data"), "--web.listen-address=127.0.0.1:0",
                  "--log.level=info"},
         .log_path = folder_.path("prometheus.log")});
    ASSERT_TRUE(process.ok()) << process.status();
    process->Release();
    process_ = process->identity();
    ASSERT_TRUE(WaitUntil([this] { return ListeningPort() > 0; }))
        << folder_.Read("prometheus.log");
  }

  int ListeningPort() const { return PortInLog(folder_.Read("prometheus.log")); }

  // The body of an instant query once it holds `wanted`.
  std::string AwaitQuery(const std::string& query, const std::string& wanted) {
    std::string body;
    EXPECT_TRUE(WaitUntil([&] {
      body = HttpGet(static_cast<uint16_t>(ListeningPort()),
                     "/api/v1/query?query=" + PercentEncoded(query));
      RealClock().Sleep(absl::Milliseconds(50));
      return absl::StrContains(body, wanted);
    })) << query
        << " gives " << body << "\n"
        << folder_.Read("prometheus.log");
    return body;
  }

  ScratchFolder folder_;
  std::optional<ProcessIdentity> process_;
};

TEST(PrometheusLog, NamesThePortInItsSecondAndThirdVersion) {
  EXPECT_EQ(PortInLog("ts=2026-11-20T10:00:00.000Z caller=tls_config.go:274 level=info "
                      "component=web msg=\"Listening on\" address=127.0.0.1:40123\n"),
            40123);
  EXPECT_EQ(PortInLog("time=2026-11-20T10:00:00.000Z level=INFO source=tls_config.go:347 "
                      "msg=\"Listening on\" component=web address=127.0.0.1:40123\n"),
            40123);
  EXPECT_EQ(PortInLog("msg=\"Start listening for connections\" address=127.0.0.1:0\n"), 0);
}

TEST_F(Prometheus, AcceptsTheShippedRulesAndConfiguration) {
  EXPECT_EQ(Run({"promtool", "check", "rules", kDeployed + "/rules.yml"}), 0)
      << folder_.Read("log");
  EXPECT_EQ(Run({"promtool", "check", "config", kDeployed + "/prometheus.yml"}), 0)
      << folder_.Read("log");
}

TEST_F(Prometheus, TheShippedAlertsFireWhenTheyShould) {
  EXPECT_EQ(Run({"promtool", "test", "rules", kDeployed + "/rules_test.yml"}), 0)
      << folder_.Read("log");
}

TEST_F(Prometheus, ShowsARunningJob) {
  EspalierdProcess daemon;
  daemon.Start();
  const std::string job = daemon.Submit({.steps = 1000000});
  daemon.AwaitStep(job, 60);
  Start(daemon.metrics_address());
  const std::string of_job = "{job=\"" + job + "\"}";
  AwaitQuery("espalier_job_step" + of_job + " >= 60", job);
  AwaitQuery("espalier_job_state{state=\"running\"} == 1", job);
  AwaitQuery("count(espalier_worker_account_seconds_total{account=\"compute\"} > 0)", "\"2\"");
  AwaitQuery("espalier_job_workers_attached" + of_job, "\"2\"");
  AwaitQuery("espalier_job_checkpoint_step" + of_job + " >= 50", job);
  AwaitQuery("espalier_journal_commit_seconds_count > 3", "espalier_journal");
  AwaitQuery("job:espalier_progress:ratio" + of_job, job);
  AwaitQuery("up", "\"1\"");
}

}  // namespace
}  // namespace espalier
