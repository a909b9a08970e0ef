// The known word most like a mistyped one. Used for verbs. Pure function: any thread.
#pragma once

#include <string>
#include <vector>

namespace espalier::ctl {

// By edit distance; empty when none is nearer than a third of its length (at least 2).
std::string Nearest(const std::string& word, const std::vector<std::string>& known);

}  // namespace espalier::ctl
