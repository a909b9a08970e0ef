#include <algorithm>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/platform/linux_machine.h"

namespace espalier {
namespace {

// Version 1 writes a number close to 2^63 where there is no limit.
constexpr int64_t kNoLimit = int64_t{1} << 60;

// Where a controller is mounted, and which group is at the mount point.
struct Mount {
  std::string point;
  std::string group;
};

using Words = std::vector<std::string>;

bool Lists(const std::string& text, const std::string& controller) {
  const Words names = absl::StrSplit(text, ',');
  return absl::c_linear_search(names, controller);
}

// `controller` empty: version 2. Fields as in proc(5): "36 35 98:0 /root /point options [tags] -
// type source super-options".
std::optional<Mount> FindMount(const std::string& root, const std::string& controller) {
  for (const std::string& line : ReadLines(root + "proc/self/mountinfo")) {
    const Words words = absl::StrSplit(line, ' ');
    const auto dash = absl::c_find(words, "-");
    if (words.size() < 10 || words.end() - dash < 4) continue;
    const bool matches = controller.empty() ? dash[1] == "cgroup2"
                                            : dash[1] == "cgroup" && Lists(dash[3], controller);
    if (matches) return Mount{.point = words[4], .group = words[3]};
  }
  return std::nullopt;
}

// This process's group under a controller. Lines are "id:controllers:/group"; version 2's has no
// controllers.
std::optional<std::string> FindGroup(const std::string& root, const std::string& controller) {
  for (const std::string& line : ReadLines(root + "proc/self/cgroup")) {
    const Words parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (controller.empty() ? parts[0] == "0" && parts[1].empty() : Lists(parts[1], controller)) {
      return parts[2];
    }
  }
  return std::nullopt;
}

// Folders of the group and of those above it, innermost first. In a container the group may lie
// outside what is mounted; then the mount point itself is the group.
Words GroupFolders(const std::string& root, const std::string& controller) {
  const std::optional<Mount> mount = FindMount(root, controller);
  const std::optional<std::string> group = FindGroup(root, controller);
  if (!mount || !group) return {};
  const std::string point = root + std::string(absl::StripPrefix(mount->point, "/"));
  absl::string_view below = *group;
  if (mount->group != "/" && !absl::ConsumePrefix(&below, mount->group)) below = "";
  if (absl::StartsWith(below, "/..")) below = "";
  Words folders;
  for (;;) {
    folders.push_back(absl::StrCat(point, below));
    const size_t slash = below.rfind('/');
    if (below.empty() || below == "/" || slash == absl::string_view::npos) return folders;
    below = below.substr(0, slash);
  }
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  int64_t value = 0;
  const Words lines = ReadLines(path);
  if (lines.empty() || !absl::SimpleAtoi(lines[0], &value) || value < 0) return std::nullopt;
  return value;
}

// The number beside `key` in a file of "key number" lines.
int64_t ReadStatistic(const std::string& path, const std::string& key) {
  for (const std::string& line : ReadLines(path)) {
    const Words words = absl::StrSplit(line, ' ');
    int64_t value = 0;
    if (words.size() == 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return 0;
}

template <typename T>
void Lower(std::optional<T>& limit, T value) {
  limit = limit ? std::min(*limit, value) : value;
}

struct MemoryFiles {
  std::string limit;
  std::string usage;
  std::string droppable;  // key in memory.stat
};

void ReadMemory(const Words& folders, const MemoryFiles& files, ControlGroupLimits& limits) {
  for (const std::string& folder : folders) {
    const std::optional<int64_t> limit = ReadNumber(absl::StrCat(folder, "/", files.limit));
    if (!limit || *limit >= kNoLimit) continue;
    const int64_t usage = ReadNumber(absl::StrCat(folder, "/", files.usage)).value_or(0);
    const int64_t droppable = ReadStatistic(absl::StrCat(folder, "/memory.stat"), files.droppable);
    Lower(limits.memory_limit_bytes, *limit);
    Lower(limits.memory_available_bytes,
          std::clamp<int64_t>(*limit - usage + droppable, 0, *limit));
  }
}

void SetProcessors(const std::string& quota, const std::string& period,
                   ControlGroupLimits& limits) {
  double quota_us = 0;
  double period_us = 0;
  if (!absl::SimpleAtod(quota, &quota_us) || !absl::SimpleAtod(period, &period_us)) return;
  if (quota_us > 0 && period_us > 0) Lower(limits.processors, quota_us / period_us);
}

void ReadProcessors(const std::string& root, ControlGroupLimits& limits) {
  for (const std::string& folder : GroupFolders(root, "cpu")) {
    const Words quota = ReadLines(folder + "/cpu.cfs_quota_us");
    const Words period = ReadLines(folder + "/cpu.cfs_period_us");
    if (!quota.empty() && !period.empty()) SetProcessors(quota[0], period[0], limits);
  }
  for (const std::string& folder : GroupFolders(root, "")) {
    const Words lines = ReadLines(folder + "/cpu.max");
    if (lines.empty()) continue;
    const Words words = absl::StrSplit(lines[0], ' ');
    if (words.size() == 2) SetProcessors(words[0], words[1], limits);
  }
}

}  // namespace

ControlGroupLimits ReadControlGroupLimits(const std::string& root) {
  ControlGroupLimits limits;
  ReadMemory(GroupFolders(root, "memory"),
             {.limit = "memory.limit_in_bytes",
              .usage = "memory.usage_in_bytes",
              .droppable = "total_inactive_file"},
             limits);
  ReadMemory(GroupFolders(root, ""),
             {.limit = "memory.max", .usage = "memory.current", .droppable = "inactive_file"},
             limits);
  ReadProcessors(root, limits);
  return limits;
}

namespace {

constexpr int kProcessorsMax = 1 << 14;

int ReadInt(const std::string& path, int otherwise) {
  int value = 0;
  const std::vector<std::string> lines = ReadLines(path);
  return !lines.empty() && absl::SimpleAtoi(lines[0], &value) ? value : otherwise;
}

// The fast ones of `allowed`: Intel names them, ARM gives each a capacity.
std::set<int> FastProcessors(const std::string& root, const std::set<int>& allowed) {
  std::set<int> fast;
  const std::vector<std::string> named = ReadLines(root + "sys/devices/cpu_core/cpus");
  if (!named.empty()) {
    for (const int cpu : ParseProcessorList(named[0])) {
      if (allowed.count(cpu) > 0) fast.insert(cpu);
    }
  }
  if (!fast.empty()) return fast;
  std::map<int, std::set<int>> by_capacity;
  for (const int cpu : allowed) {
    const std::string path = absl::StrCat(root, "sys/devices/system/cpu/cpu", cpu, "/cpu_capacity");
    by_capacity[ReadInt(path, 0)].insert(cpu);
  }
  return by_capacity.empty() ? allowed : by_capacity.rbegin()->second;
}

}  // namespace

std::set<int> ParseProcessorList(const std::string& text) {
  std::set<int> processors;
  for (const absl::string_view range : absl::StrSplit(text, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    int first = 0;
    int last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0) {
      continue;
    }
    last = std::min(last, kProcessorsMax);
    for (int cpu = first; cpu <= last; ++cpu) processors.insert(cpu);
  }
  return processors;
}

int CountPerformanceCores(const std::string& root, const std::set<int>& allowed) {
  std::set<std::pair<int, int>> cores;
  for (const int cpu : FastProcessors(root, allowed)) {
    const std::string topology =
        absl::StrCat(root, "sys/devices/system/cpu/cpu", cpu, "/topology/");
    cores.emplace(ReadInt(topology + "physical_package_id", 0), ReadInt(topology + "core_id", cpu));
  }
  return std::max<int>(1, static_cast<int>(cores.size()));
}

std::vector<std::string> ReadLines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

}  // namespace espalier
