// Values as text: as Python writes them, and as JSON. Used by value.cc and filters.cc. Pure: any
// thread.
#pragma once

#include <optional>
#include <string>

#include "worker/chat/value.h"

namespace espalier {

// Python's repr().
std::string PythonRepr(const Value& value);

// Python's json.dumps(ensure_ascii=False): with `indent` spaces a level, else on one line.
// INVALID_ARGUMENT for what JSON does not have.
absl::StatusOr<std::string> PythonJson(const Value& value, std::optional<int64_t> indent);

}  // namespace espalier
