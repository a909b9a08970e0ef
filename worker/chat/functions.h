// What a chat template may call by name: filters (`x | trim`), tests (`x is defined`), methods
// (`text.strip()`) and global functions. Used by interpreter.cc. Pure: any thread.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/chat/value.h"

namespace espalier {

// UNIMPLEMENTED names a filter or test that is not known.
absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value,
                                  const Arguments& arguments);
absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value,
                               const Arguments& arguments);

// A method of a text or of a dict; nothing when there is none of that name.
std::optional<Value> MethodOf(const Value& value, absl::string_view name);

// -1, 0 or 1. INVALID_ARGUMENT for values that have no order.
absl::StatusOr<int> Order(const Value& left, const Value& right);
absl::StatusOr<bool> Contains(const Value& container, const Value& item);
// The items of a list, keys of a dict, characters of a text; of what is undefined, none.
absl::StatusOr<Value::List> ItemsOf(const Value& value);

// range, namespace, dict, raise_exception, strftime_now (of `now`, in UTC). `raise_exception` gives
// FAILED_PRECONDITION with its message.
Value::Dict GlobalFunctions(absl::Time now);

}  // namespace espalier
