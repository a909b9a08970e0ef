// Nearest: the word that a person who mistyped probably meant, for error messages. Used by
// common/config and coordinator/ctl. Pure: any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace espalier {

// Insertions, deletions, substitutions and swaps of neighbours (each 1) between the words; upper
// and lower case are equal. Words beyond 64 characters count as their first 64.
int EditDistance(absl::string_view a, absl::string_view b);

// The candidate with the smallest distance, the first of equals; none when even that one differs in
// more than a third of its letters (one letter is always allowed).
std::optional<std::string> Nearest(absl::string_view word,
                                   const std::vector<std::string>& candidates);

}  // namespace espalier
