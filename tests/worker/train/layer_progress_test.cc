// Progress is told when work is done: a device that has much queued is waited for.
#include "worker/train/layer_progress.h"

#include <gtest/gtest.h>

#include "worker/collective/in_process.h"

namespace espalier {
namespace {

// A device whose layers take the same time each, and a clock that its waits move.
struct FakeDevice : Clock {
  absl::Duration now;
  absl::Duration layer;
  int64_t queued = 0;
  int64_t waits = 0;

  absl::Time Now() override { return absl::UnixEpoch() + now; }
  absl::Duration Monotonic() override { return now; }
  void Sleep(absl::Duration duration) override { now += duration; }
  void Wait() {
    now += layer * queued;
    queued = 0;
    ++waits;
  }
};

// The longest time without a sign of work, in a run of that many layers.
absl::Duration LongestSilence(FakeDevice& device, int64_t layers) {
  DevicePacer pacer([&] { device.Wait(); }, device);
  absl::Duration longest;
  absl::Duration told = device.now;
  for (int64_t i = 0; i < layers; ++i) {
    ++device.queued;
    if (!pacer.Queued()) continue;
    longest = std::max(longest, device.now - told);
    told = device.now;
  }
  return longest;
}

TEST(DevicePacer, SlowLayersAreToldOneByOne) {
  FakeDevice device;
  device.layer = absl::Seconds(3);
  EXPECT_EQ(LongestSilence(device, 50), absl::Seconds(3));
}

TEST(DevicePacer, TwoSecondsNeverPassInSilenceWhileLayersAreShorter) {
  for (const absl::Duration layer : {absl::Milliseconds(1), absl::Milliseconds(40),
                                     absl::Milliseconds(300), absl::Milliseconds(900)}) {
    FakeDevice device;
    device.layer = layer;
    EXPECT_LE(LongestSilence(device, 2000), absl::Seconds(2)) << layer;
  }
}

TEST(DevicePacer, QuickLayersAreSeldomWaitedFor) {
  FakeDevice device;
  device.layer = absl::Microseconds(100);
  LongestSilence(device, 10000);
  EXPECT_LT(device.waits, 30);
}

TEST(LayerProgress, OnTheCpuEachLayerCountsAndIsNamedUntilThePassIsOver) {
  const auto world = InProcessGroup(1, absl::Seconds(30), {});
  ProgressBoard board;
  const auto worked = LayerProgress({*world[0], RealClock(), board}, torch::kCPU);
  board.Enter(v1::PHASE_COMPUTE);
  worked(1);
  worked(2);
  EXPECT_EQ(board.work, 2);
  EXPECT_EQ(board.layer, 3) << "from 1 on";
  board.Enter(v1::PHASE_EXCHANGE);
  EXPECT_EQ(board.layer, 0);
}

}  // namespace
}  // namespace espalier
