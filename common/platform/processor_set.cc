#include "common/platform/processor_set.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/platform/text_file.h"

namespace espalier {
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

}  // namespace espalier
