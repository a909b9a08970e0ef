// Limits that a Linux control group (version 1 or 2, or both mounted) puts on this process. Used by
// platform_linux.cc; free of system calls, so that its tests run everywhere. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace espalier {

struct ControlGroupLimits {
  // Tightest memory limit of the group and those above it; absent: none.
  std::optional<int64_t> memory_limit_bytes;
  // What is left until that limit, files that can be dropped counted as free.
  std::optional<int64_t> memory_available_bytes;
  // Processors' worth of time per second, tightest of the group and those above it.
  std::optional<double> processors;
};

// Reads below `root`, "/" but for tests: root/proc/self/{cgroup,mountinfo} and the groups' files.
// What is not there sets no limit.
ControlGroupLimits ReadControlGroupLimits(const std::string& root);

}  // namespace espalier
