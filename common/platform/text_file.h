// Small text files of the system (/proc, /sys). Used inside common/platform. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace espalier {

// The lines of a file without their ends; none when it cannot be read.
std::vector<std::string> ReadLines(const std::string& path);

}  // namespace espalier
