// What the machines of a test need before they start: certificates, the cluster file, a job,
// agents.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/cluster/cluster.h"

namespace espalier::cluster {
namespace {

void WriteText(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

constexpr char kJob[] = R"(
name: cluster-test
model: {hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4}
data: {path: data, sequence_length: 64}
train: {steps: 1000000, global_batch: 8}
batch: {micro_batch: [4]}
parallel: {nodes: [studio, macbook], min_nodes: 2}
checkpoint: {every_steps: 200}
evaluate: {every_steps: 0, max_sequences: 8}
health: {failure_timeout_seconds: 4, max_restarts: 1000}
launch: {threads: 1, timeout_seconds: 20}
)";

// REMOTE_SHELL ADDRESS COMMAND...: namespaces stand in for hosts.
constexpr char kRemoteShell[] = R"(#!/bin/bash
while [[ $1 == -* ]]; do shift; done
address=$1; shift
case $address in
  STUDIO_ADDRESS) space=STUDIO_SPACE ;;
  MACBOOK_ADDRESS) space=MACBOOK_SPACE ;;
  *) echo "no route to $address" >&2; exit 255 ;;
esac
exec ip netns exec $space bash -c "$*"
)";

std::string Tls(absl::string_view pki, absl::string_view name) {
  return absl::StrCat("{ca: ", pki, "ca.crt, certificate: ", pki, name, ".crt, key: ", pki, name,
                      ".key}");
}

}  // namespace

void Cluster::MakeCertificates() const {
  const std::string pki = bin_ + "/espalier pki ";
  const std::string to = " --dir " + folder_ + "/pki";
  Must(pki + "init" + to);
  Must(pki + "issue coordinator --role coordinator --address " + kStudioAddress + to);
  Must(pki + "issue operator --role operator" + to);
  Must(pki + "issue viewer --role viewer" + to);
  if (nodes_ == Nodes::kAgents) return;
  Must(pki + "issue studio --role worker" + to);
  Must(pki + "issue macbook --role worker" + to);
}

void Cluster::WriteFiles() const {
  const std::string shell = folder_ + "/remote-shell", pki = folder_ + "/pki/";
  WriteText(shell, absl::StrReplaceAll(kRemoteShell, {{"STUDIO_ADDRESS", kStudioAddress},
                                                      {"MACBOOK_ADDRESS", kMacbookAddress},
                                                      {"STUDIO_SPACE", Namespace("studio")},
                                                      {"MACBOOK_SPACE", Namespace("macbook")}}));
  std::filesystem::permissions(shell, std::filesystem::perms::owner_all);
  const auto node = [&](absl::string_view name, absl::string_view address) {
    return absl::StrCat("  - {name: ", name, ", address: ", address, ", tls: ", Tls(pki, name),
                        "}\n");
  };
  const bool agents = nodes_ == Nodes::kAgents;
  const std::string named =
      absl::StrCat("\n", node("studio", kStudioAddress), node("macbook", kMacbookAddress));
  WriteText(folder_ + "/cluster.yaml",
            absl::StrCat("listen: ", kCoordinator, "\nmetrics_listen: 127.0.0.1:9464\nstate_dir: ",
                         folder_, "/state\ntls: ", Tls(pki, "coordinator"), "\nlauncher: {",
                         agents ? "" : absl::StrCat("remote_shell: ", shell, ", "),
                         "network: 10.77.0.0/24}\nnodes:", agents ? " []\n" : named));
  WriteText(folder_ + "/job.yaml", kJob);
}

void Cluster::Join(const std::string& machine) {
  const std::string address = machine == "studio" ? kStudioAddress : kMacbookAddress;
  const CommandResult added = Cli("-o json nodes add " + machine + " --address " + address);
  const std::string line = nlohmann::json::parse(added.output, nullptr, false).value("command", "");
  ASSERT_FALSE(line.empty()) << added.output;
  const CommandResult joined =
      On(machine, bin_ + "/" + line + " --only --state-dir " + folder_ + "/agent-" + machine);
  ASSERT_EQ(joined.exit_code, 0) << joined.output;
  StartAgent(machine);
}

void Cluster::StartAgent(const std::string& machine) {
  const std::string log = folder_ + "/agent-" + machine + ".log";
  const std::string disk = folder_ + "/disk-of-macbook", state = folder_ + "/state";
  std::filesystem::create_directories(disk);
  agent_pids_[machine] =
      Start(machine,
            (machine == "macbook" ? "mount --bind " + disk + " " + state + " && " : std::string()) +
                "HOME=" + folder_ + " exec " + bin_ + "/espalier-agent run --state-dir " + folder_ +
                "/agent-" + machine + " --jobs " + state + "/jobs --data " + folder_ + "/data",
            log);
  EXPECT_TRUE(Eventually([&] { return Usable(machine); }, 20))
      << Cli("nodes").output << Shell("cat " + log).output;
}

bool Cluster::Usable(const std::string& machine) const {
  const nlohmann::json answer = nlohmann::json::parse(Cli("-o json nodes").output, nullptr, false);
  for (const nlohmann::json& node : answer.value("nodes", nlohmann::json::array())) {
    if (node.value("name", "") != machine) continue;
    return node.value("agent", "") == "ATTACHED" && node.value("unusable_reason", "").empty();
  }
  return false;
}

void Cluster::KillAgent(const std::string& machine) {
  kill(agent_pids_[machine], SIGKILL);
  waitpid(agent_pids_[machine], nullptr, 0);
  agent_pids_.erase(machine);
}

}  // namespace espalier::cluster
