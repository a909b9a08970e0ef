// What filters and methods do to texts, by characters. Used by worker/chat. Pure: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/chat/value.h"

namespace espalier {

size_t CharactersOf(absl::string_view text);

// RESOURCE_EXHAUSTED for over 64 MiB.
absl::Status CheckTextSize(size_t bytes);

// Without these characters, or without white space, at its ends.
absl::string_view Stripped(absl::string_view text, const Value* characters, bool left, bool right);

// At most `count` times, where it is given.
absl::StatusOr<Value> ReplaceText(absl::string_view text, absl::string_view old,
                                  absl::string_view by, const Value* count);

std::string IndentLines(absl::string_view text, absl::string_view spaces, bool first, bool blank);

// Every word with a capital, as Python's title(); or the first one, as capitalize().
std::string WithCapitals(absl::string_view text, bool every_word);

// The parts between separators, or between white space; at most `most` cuts when that is not
// negative.
absl::StatusOr<Value> SplitText(absl::string_view text, const Value* separator, int64_t most);

}  // namespace espalier
