// Numbers as people like to read them, for tables, logs and messages; machines get the plain ones.
// Used by the command lines and the log. Pure: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace espalier {

// "0 B", "1023 B", "1.5 KiB", "48.0 GiB".
std::string HumanBytes(int64_t bytes);

// "950 us", "12.3 ms", "4.2 s", "3 min 05 s", "2 h 07 min", "3 d 04 h"; "forever" when infinite.
std::string HumanDuration(absl::Duration duration);

// "0", "7.25", "999", "12.3 k", "1.07 M"; three digits that count.
std::string HumanNumber(double number);

}  // namespace espalier
