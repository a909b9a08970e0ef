// `espalier nodes`, as whole screens.
#include <gtest/gtest.h>

#include "coordinator/ctl/render.h"

namespace espalier::ctl {
namespace {

const View kView{.now = absl::FromUnixMillis(1800000000000)};

v1::NodeStatus& Add(v1::ListNodesResponse& response, const std::string& name) {
  v1::NodeStatus& node = *response.add_nodes();
  node.set_name(name);
  node.set_address("10.77.0.1");
  return node;
}

v1::ListNodesResponse Attached() {
  v1::ListNodesResponse response;
  response.mutable_coordinator()->set_espalier("1.2.0");
  response.mutable_coordinator()->set_open_mpi("4.1.4");
  v1::NodeStatus& node = Add(response, "studio");
  node.set_device("mps");
  node.set_agent(v1::AGENT_STATE_ATTACHED);
  node.set_agent_since_ms(1799999940000);
  v1::NodeReport& report = *node.mutable_report();
  report.mutable_versions()->set_espalier("1.2.0");
  report.mutable_versions()->set_open_mpi("4.1.4");
  report.mutable_versions()->set_libtorch("2.6.0");
  report.mutable_resources()->set_memory_bytes(64000000000);
  report.mutable_resources()->set_memory_available_bytes(48000000000);
  report.mutable_resources()->set_disk_free_bytes(512000000000);
  return response;
}

TEST(RenderNodes, NodesWithoutAgentsSayWhatTheClusterFileSays) {
  v1::ListNodesResponse response;
  v1::NodeStatus& studio = Add(response, "studio");
  studio.set_profile("studio-m2");
  studio.set_device("mps");
  studio.set_job_id("3f2a9c1e");
  studio.set_memory_limit_bytes(64000000000);
  v1::NodeStatus& macbook = Add(response, "macbook");
  macbook.set_set_aside_reason("3 crashes");
  macbook.set_set_aside_until_ms(1800000060000);
  macbook.set_unusable_reason("is set aside (3 crashes)");
  Add(response, "mini");
  EXPECT_EQ(RenderNodes(response, kView),
            R"(NODE     ADDRESS    PROFILE    DEVICE  MEMORY LIMIT  STATE
studio   10.77.0.1  studio-m2  mps          64.0 GB  runs 3f2a9c1e
macbook  10.77.0.1  -          -          machine's  set aside until 2027-01-15 08:01:00: 3 crashes
mini     10.77.0.1  -          -          machine's  free
)");
}

TEST(RenderNodes, AnIdleNodeWithAnAgentShowsWhatItHas) {
  v1::ListNodesResponse response = Attached();
  v1::HeldState& held = *response.mutable_nodes(0)->mutable_report()->add_held();
  held.set_job_id("nano-3");
  held.set_step(120);
  EXPECT_EQ(RenderNodes(response, kView),
            "NODE    ADDRESS    DEVICE  MEMORY LIMIT  AGENT           ESPALIER  OPEN MPI  LIBTORCH"
            "         MEMORY FREE  DISK FREE  CONDITION  HOLDS               STATE\n"
            "studio  10.77.0.1  mps        machine's  attached 1m00s  1.2.0     4.1.4     2.6.0   "
            "  48.0 GB of 64.0 GB     512 GB  good       nano-3 at step 120  free\n");
}

TEST(RenderNodes, OfTheStatesThatANodeHoldsTheNewestOfTheLatestJobIsNamed) {
  v1::ListNodesResponse response = Attached();
  const auto add = [&](const std::string& job, int64_t step) {
    v1::HeldState& held = *response.mutable_nodes(0)->mutable_report()->add_held();
    held.set_job_id(job);
    held.set_step(step);
  };
  add("nano-10", 50);
  add("nano-10", 150);
  add("nano-10", 100);
  add("nano-9", 4000);
  add("stray", 9000);
  EXPECT_NE(RenderNodes(response, kView).find(" nano-10 at step 150 and 4 more "),
            std::string::npos)
      << RenderNodes(response, kView);
}

TEST(RenderNodes, WhatIsWrongWithANodeStandsInItsLine) {
  v1::ListNodesResponse response = Attached();
  v1::NodeStatus& node = *response.mutable_nodes(0);
  node.mutable_report()->mutable_versions()->set_open_mpi("5.0.7");
  node.mutable_report()->mutable_condition()->set_heat(v1::NODE_PRESSURE_WARNING);
  node.mutable_report()->mutable_condition()->set_memory(v1::NODE_PRESSURE_CRITICAL);
  node.mutable_report()->mutable_condition()->set_power(v1::NODE_POWER_BATTERY);
  node.set_clock_ahead_seconds(-10800);
  node.set_unusable_reason("has other versions");
  const std::string text = RenderNodes(response, kView);
  EXPECT_NE(text.find("5.0.7 (4.1.4 here)"), std::string::npos) << text;
  EXPECT_NE(text.find("memory critical, heat warning, on battery, clock 3h00m behind"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("gets no job: it has other versions\n"), std::string::npos) << text;
  node.mutable_report()->mutable_condition()->set_battery_percent(62);
  EXPECT_NE(RenderNodes(response, kView).find("heat warning, on battery, 62 %, clock"),
            std::string::npos);
}

TEST(RenderNodes, WhatADeviceFailsInIsNamed) {
  v1::ListNodesResponse response = Attached();
  EXPECT_EQ(RenderNodes(response, kView).find("SELF-TEST"), std::string::npos);
  v1::DeviceTrial& trial = *response.mutable_nodes(0)->mutable_report()->mutable_device();
  trial.set_device("mps");
  trial.add_precisions()->set_precision("fp32");
  v1::PrecisionTrial& bf16 = *trial.add_precisions();
  bf16.set_precision("bf16");
  EXPECT_NE(RenderNodes(response, kView).find("SELF-TEST"), std::string::npos);
  EXPECT_NE(RenderNodes(response, kView).find(" mps good "), std::string::npos);
  bf16.set_failed("attention, or its gradients");
  EXPECT_NE(RenderNodes(response, kView).find("mps fails in bf16: attention, or its gradients"),
            std::string::npos)
      << RenderNodes(response, kView);
  trial.Clear();
  trial.set_error("no memory");
  EXPECT_NE(RenderNodes(response, kView).find("not known: no memory"), std::string::npos);
}

TEST(RenderNodes, AnAgentThatIsSilentOrGoneShowsForHowLong) {
  v1::ListNodesResponse response = Attached();
  v1::NodeStatus& node = *response.mutable_nodes(0);
  node.set_job_id("nano-3");
  node.set_unusable_reason("has an agent that was not heard of within 10s");
  node.set_agent(v1::AGENT_STATE_SILENT);
  node.set_agent_heard_ms(1799999985000);
  EXPECT_NE(RenderNodes(response, kView).find("silent 15s"), std::string::npos);
  EXPECT_NE(RenderNodes(response, kView).find("runs nano-3; gets no job: it has an agent that"),
            std::string::npos);
  node.set_agent(v1::AGENT_STATE_GONE);
  node.set_agent_since_ms(1799996400000);
  EXPECT_NE(RenderNodes(response, kView).find("gone 1h00m"), std::string::npos);
  node.set_agent_since_ms(0);  // not since this espalierd was started
  EXPECT_NE(RenderNodes(response, kView).find("gone  "), std::string::npos);
}

}  // namespace
}  // namespace espalier::ctl
