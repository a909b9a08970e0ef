#include "coordinator/service/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/observe/all_metrics.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::shared_ptr<JobView> RunningJob() {
  auto job = std::make_shared<JobView>();
  job->status.set_id("job-7");
  job->status.set_name("nano");
  job->status.set_state(v1::JOB_STATE_RUNNING);
  job->status.set_step(12);
  job->status.set_total_steps(100);
  job->status.set_loss(1.5);
  job->status.set_validation_loss(2.5);
  v1::TaskFigure& figure = *job->status.add_figures();
  figure.set_name("accuracy");
  figure.set_value(0.5);
  *job->status.add_evaluation_figures() = figure;
  job->status.mutable_evaluation_figures(0)->set_value(0.25);
  v1::RankStatus& rank = *job->status.add_ranks();
  rank.set_rank(0);
  rank.set_node("studio");
  rank.set_attached(true);
  rank.set_memory_bytes(4096);
  rank.mutable_last_step()->set_micro_batch(6);
  rank.mutable_last_step()->set_memory_limit_bytes(8192);
  rank.mutable_last_step()->set_pass_peak_bytes(5000);
  rank.mutable_last_step()->set_pass_predicted_bytes(5100);
  v1::PeerArrivals& arrivals = *rank.mutable_last_step()->add_arrivals();
  arrivals.set_rank(1);
  arrivals.set_bytes(3000);
  arrivals.set_seconds(1.5);
  job->status.mutable_last_checkpoint()->set_bytes(999);
  job->checkpoint_at = absl::Seconds(40);
  job->progress_at = {absl::Seconds(97)};
  job->restarts_by_cause = {{"rank_lost", 2}};
  job->nodes = {"studio"};
  job->tallies.resize(1);
  v1::StepReport step;
  step.set_compute_seconds(3);
  job->tallies[0].Reported(step, absl::Seconds(3));
  return job;
}

std::string Scrape(const View& view) {
  return prometheus::TextSerializer().Serialize(MakeMetrics(view, {.now = absl::Seconds(100)}));
}

View ViewOf(std::shared_ptr<const JobView> job) {
  View view;
  view.jobs[JobId("job-7")] = std::move(job);
  auto node = std::make_shared<v1::NodeStatus>();
  node->set_name("studio");
  node->set_agent(v1::AGENT_STATE_ATTACHED);
  node->mutable_report()->mutable_resources()->set_disk_free_bytes(512);
  node->mutable_report()->mutable_condition()->set_other_load(0.25);
  node->mutable_report()->mutable_condition()->set_energy_joules(2.5);
  view.nodes = {std::move(node)};
  return view;
}

TEST(Metrics, AJobShowsItsProgress) {
  const std::string text = Scrape(ViewOf(RunningJob()));
  EXPECT_THAT(text, HasSubstr("espalier_job_step{job=\"job-7\"} 12"));
  EXPECT_THAT(text, HasSubstr("espalier_job_loss{job=\"job-7\"} 1.5"));
  EXPECT_THAT(text, HasSubstr("espalier_job_validation_loss{job=\"job-7\"} 2.5"));
  EXPECT_THAT(text, HasSubstr("espalier_job_task_figure{job=\"job-7\",figure=\"accuracy\"} 0.5"));
  EXPECT_THAT(text,
              HasSubstr("espalier_job_evaluation_figure{job=\"job-7\",figure=\"accuracy\"} 0.25"));
  EXPECT_THAT(text, HasSubstr("espalier_job_state{job=\"job-7\",state=\"running\"} 1"));
  EXPECT_THAT(text, HasSubstr("espalier_job_state{job=\"job-7\",state=\"failed\"} 0"));
  EXPECT_THAT(text, HasSubstr("espalier_job_info{job=\"job-7\",name=\"nano\"} 1"));
  EXPECT_THAT(text, HasSubstr("espalier_job_restarts_total{job=\"job-7\",cause=\"rank_lost\"} 2"));
  EXPECT_THAT(text, HasSubstr("espalier_job_checkpoint_age_seconds{job=\"job-7\"} 60"));
  EXPECT_THAT(text, HasSubstr("espalier_job_checkpoint_size_bytes{job=\"job-7\"} 999"));
}

TEST(Metrics, AWorkerShowsItsNodeAndRank) {
  const std::string text = Scrape(ViewOf(RunningJob()));
  const std::string labels = "{job=\"job-7\",node=\"studio\",rank=\"0\"";
  EXPECT_THAT(text, HasSubstr("espalier_worker_memory_bytes" + labels + "} 4096"));
  EXPECT_THAT(text, HasSubstr("espalier_worker_micro_batch_sequences" + labels + "} 6"));
  EXPECT_THAT(text, HasSubstr("espalier_worker_memory_limit_bytes" + labels + "} 8192"));
  EXPECT_THAT(text, HasSubstr("espalier_worker_pass_peak_bytes" + labels + "} 5000"));
  EXPECT_THAT(text, HasSubstr("espalier_worker_pass_predicted_bytes" + labels + "} 5100"));
  EXPECT_THAT(text, HasSubstr("espalier_worker_peer_bandwidth_bytes_per_second" + labels +
                              ",peer=\"1\"} 2000"));
  EXPECT_THAT(text, HasSubstr("espalier_worker_silent_seconds" + labels + "} 3"));
  EXPECT_THAT(text, HasSubstr("espalier_worker_account_seconds_total" + labels +
                              ",account=\"compute\"} 3"));
}

TEST(Metrics, NodesShowTheirStateAndWhatTheirAgentsSay) {
  View view;
  auto studio = std::make_shared<v1::NodeStatus>();
  studio->set_name("studio");
  studio->set_agent(v1::AGENT_STATE_ATTACHED);
  studio->mutable_report()->mutable_resources()->set_disk_free_bytes(512);
  studio->mutable_report()->mutable_resources()->set_swap_used_bytes(64);
  studio->mutable_report()->mutable_condition()->set_energy_joules(2.5);
  studio->set_clock_ahead_seconds(1.5);
  studio->mutable_report()->mutable_condition()->set_other_load(0.25);
  studio->set_spared_reason("is used by somebody");
  auto macbook = std::make_shared<v1::NodeStatus>();
  macbook->set_name("macbook");
  macbook->set_agent(v1::AGENT_STATE_GONE);
  macbook->set_unusable_reason("has no agent now");
  view.nodes = {studio, macbook};
  const std::string text = Scrape(view);
  EXPECT_THAT(text, HasSubstr("espalier_nodes{state=\"free\"} 1"));
  EXPECT_THAT(text, HasSubstr("espalier_nodes{state=\"unusable\"} 1"));
  EXPECT_THAT(text, HasSubstr("espalier_node_agents{state=\"attached\"} 1"));
  EXPECT_THAT(text, HasSubstr("espalier_node_agents{state=\"gone\"} 1"));
  EXPECT_THAT(text, HasSubstr("espalier_node_disk_free_bytes{node=\"studio\"} 512"));
  EXPECT_THAT(text, HasSubstr("espalier_node_swap_used_bytes{node=\"studio\"} 64"));
  EXPECT_THAT(text, HasSubstr("espalier_node_energy_joules_total{node=\"studio\"} 2.5"));
  EXPECT_THAT(text, HasSubstr("espalier_node_clock_ahead_seconds{node=\"studio\"} 1.5"));
  EXPECT_THAT(text, HasSubstr("espalier_node_other_load{node=\"studio\"} 0.25"));
  EXPECT_THAT(text, HasSubstr("espalier_node_spared{node=\"studio\"} 1"));
  EXPECT_THAT(text, Not(HasSubstr("{node=\"macbook\"}")));
}

TEST(Metrics, TheJournalIsAHistogram) {
  View view;
  for (double seconds : {0.0001, 0.003, 100.0}) view.stats.journal.Add(absl::Seconds(seconds));
  const std::string text = Scrape(view);
  EXPECT_THAT(text, HasSubstr("espalier_journal_commit_seconds_count 3"));
  EXPECT_THAT(text, HasSubstr("espalier_journal_commit_seconds_bucket{le=\"0.005\"} 2"));
  EXPECT_THAT(text, HasSubstr("espalier_journal_commit_seconds_bucket{le=\"+Inf\"} 3"));
}

TEST(Metrics, SeriesOfAJobThatIsOverForLongAreGone) {
  auto job = RunningJob();
  job->final_at = absl::Seconds(90);
  EXPECT_THAT(Scrape(ViewOf(job)), HasSubstr("job-7"));
  job->final_at = absl::Seconds(100) - absl::Hours(2);
  EXPECT_THAT(Scrape(ViewOf(job)), Not(HasSubstr("job-7")));
}

TEST(Metrics, AFinalJobHasNoSilentWorkersButKeepsItsTotals) {
  auto job = RunningJob();
  job->final_at = absl::Seconds(90);
  job->status.clear_ranks();
  const std::string text = Scrape(ViewOf(job));
  EXPECT_THAT(text, Not(HasSubstr("espalier_worker_silent_seconds")));
  EXPECT_THAT(text, HasSubstr("espalier_worker_account_seconds_total"));
  EXPECT_THAT(text, HasSubstr("espalier_job_workers_wanted{job=\"job-7\"} 0"));
}

TEST(Metrics, EveryNameInTheListIsExposedAndNoOther) {
  std::set<std::string> listed, exposed;
  for (const MetricName& name : kAllMetrics) listed.insert(std::string(name.name));
  for (const auto& family : MakeMetrics(ViewOf(RunningJob()), {.now = absl::Seconds(100)})) {
    exposed.insert(family.name);
    EXPECT_FALSE(family.help.empty()) << family.name;
  }
  EXPECT_EQ(exposed, listed);
}

// Every espalier_ series that the shipped rules read must exist.
TEST(Metrics, TheShippedRulesReadOnlyWhatIsExposed) {
  std::set<std::string> known;
  for (const MetricName& name : kAllMetrics) {
    known.insert(std::string(name.name));
    if (name.kind == MetricKind::kHistogram) known.insert(std::string(name.name) + "_bucket");
  }
  std::ifstream file(ESPALIER_SOURCE_DIR "/deploy/prometheus/rules.yml");
  std::string line;
  int found = 0;
  static const std::regex name(R"((^|[^:a-z_])(espalier_[a-z_]+)(?![a-z_:]))");
  while (std::getline(file, line)) {
    if (line.find('#') == 0 || line.find("  #") != std::string::npos) continue;
    for (std::sregex_iterator it(line.begin(), line.end(), name), end; it != end; ++it) {
      ++found;
      EXPECT_TRUE(known.count((*it)[2])) << (*it)[2] << " in: " << line;
    }
  }
  EXPECT_GT(found, 10);
}

TEST(Expose, SaysWhyItCannotAndWhatToChange) {
  const absl::StatusOr<std::unique_ptr<prometheus::Exposer>> first = Expose("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string taken = absl::StrCat("127.0.0.1:", (*first)->GetListeningPorts().at(0));
  const absl::Status in_use = Expose(taken).status();
  EXPECT_EQ(in_use.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(in_use.message()),
              AllOf(HasSubstr(taken + ": another program listens there"),
                    HasSubstr("--metrics-listen"), Not(HasSubstr("Civet"))));
  const absl::Status foreign = Expose("203.0.113.9:9464").status();  // TEST-NET-3: never ours
  EXPECT_EQ(foreign.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(foreign.message()), HasSubstr("no address of this machine"));
}

}  // namespace
}  // namespace espalier
