// Whether bytes are UTF-8. Used by the loader and its messages. Pure: any thread.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace espalier {

// Length of the longest start of `text` that is well-formed UTF-8 (Unicode 15, table 3-7).
size_t ValidUtf8Prefix(absl::string_view text);

}  // namespace espalier
