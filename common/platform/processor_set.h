// Which processors of a Linux machine are its fast physical cores, from /sys. Used by
// platform_linux.cc; free of system calls, so that its tests run everywhere. Thread-safe.
#pragma once

#include <set>
#include <string>

namespace espalier {

// "0-3,8" -> {0, 1, 2, 3, 8}; what cannot be read is left out.
std::set<int> ParseProcessorList(const std::string& text);

// Of the logical processors `allowed`, how many different physical cores of the fastest kind. Reads
// below `root`, "/" but for tests. At least 1.
int CountPerformanceCores(const std::string& root, const std::set<int>& allowed);

}  // namespace espalier
