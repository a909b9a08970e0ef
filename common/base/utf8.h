// UTF-8 for bytes that came from elsewhere. Used by common/config, common/rpc,
// coordinator/agent, coordinator/launcher, coordinator/service and worker/tokenizer. Pure: any
// thread.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// Length of the longest start of `text` that is well-formed UTF-8 (Unicode 15, table 3-7).
size_t ValidUtf8Prefix(absl::string_view text);

// The text with every byte that is not UTF-8 replaced by '?': Protobuf's strings must be.
std::string AsUtf8(std::string text);

}  // namespace espalier
