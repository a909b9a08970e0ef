// What the files of a Linux machine say about the limits of this process: its control groups
// (version 1 or 2, or both mounted), and which processors are fast physical cores. Used by
// platform_linux.cc; free of system calls, so that its tests run everywhere. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

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

// "0-3,8" -> {0, 1, 2, 3, 8}; what cannot be read is left out.
std::set<int> ParseProcessorList(const std::string& text);

// Of the logical processors `allowed`, how many different physical cores of the fastest kind. Reads
// below `root`, "/" but for tests. At least 1.
int CountPerformanceCores(const std::string& root, const std::set<int>& allowed);

// The lines of a small file of the system (/proc, /sys) without their ends; none when it cannot be
// read.
std::vector<std::string> ReadLines(const std::string& path);

}  // namespace espalier
