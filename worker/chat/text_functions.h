// What filters and methods do to texts, by characters. Used by worker/chat. Pure: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/chat/value.h"

namespace espalier {

size_t CharactersOf(absl::string_view text);
// Each of them. RESOURCE_EXHAUSTED for over 1 MiB of text: a list of them takes 100 times as much.
absl::StatusOr<std::vector<absl::string_view>> CharactersIn(absl::string_view text);

// Without these characters, or without white space, at its ends. RESOURCE_EXHAUSTED for over 256
// bytes of characters.
absl::StatusOr<absl::string_view> Stripped(absl::string_view text, const Value* characters,
                                           bool left, bool right);

// At most `count` times, where it is given.
absl::StatusOr<Value> ReplaceText(absl::string_view text, absl::string_view old,
                                  absl::string_view by, const Value* count);

absl::StatusOr<Value> IndentLines(absl::string_view text, absl::string_view spaces, bool first,
                                  bool blank);

// As text.find(wanted), in linear time.
size_t FindText(absl::string_view text, absl::string_view wanted);

// Every word with a capital, as Python's title(); or the first one, as capitalize().
std::string WithCapitals(absl::string_view text, bool every_word);

// The parts between separators, or between white space; at most `most` cuts when that is not
// negative, and the last part keeps all that is behind the last cut. RESOURCE_EXHAUSTED for over
// 2^20 parts.
absl::StatusOr<Value> SplitText(absl::string_view text, const Value* separator, int64_t most);

}  // namespace espalier
