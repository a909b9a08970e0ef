// Reading the end of a generation's log. Used for the reason of a generation's end.
// Thread rule: any thread.
#pragma once

#include <string>

namespace espalier {

// What the log says last that matters: the line in which mpirun names the process that died, or
// else the last line that is no decoration. At most 300 characters; empty when there is none.
std::string LastWords(const std::string& log_path);

}  // namespace espalier
