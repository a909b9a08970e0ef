// Reading the end of a generation's log, for the reason of its end; and making what a log holds fit
// for messages.
// Thread rule: any thread.
#pragma once

#include <string>

namespace espalier {

// What the log says last that matters: the line in which mpirun names the process that died, or
// else the last line that is no decoration. At most 300 characters; empty when there is none.
// Always UTF-8.
std::string LastWords(const std::string& log_path);

// The text with every byte that is not UTF-8 replaced by '?': Protobuf's strings must be.
std::string AsUtf8(std::string text);

}  // namespace espalier
