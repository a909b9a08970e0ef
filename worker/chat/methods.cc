// Methods of texts and dicts, tests, and global functions.
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/chat/functions.h"
#include "worker/chat/text_functions.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

constexpr size_t kRefusalBytesMax = 2000;
constexpr size_t kTimeFormatBytesMax = 256;  // "%E1024S" writes 1,024

using Result = absl::StatusOr<Value>;
using TextMethod = Result (*)(const std::string&, const Arguments&);

Result Strip(const std::string& text, const Arguments& arguments, bool left, bool right) {
  ASSIGN_OR_RETURN(const absl::string_view stripped,
                   Stripped(text, arguments.Find(0, "chars"), left, right));
  return Value::Text(std::string(stripped));
}

// Whether the text begins (or ends) with a text, or with one of a list of them.
Result Borders(const std::string& text, const Arguments& arguments, bool begins) {
  const Value* wanted = arguments.Find(0, "prefix");
  if (wanted == nullptr) return absl::InvalidArgumentError("startswith and endswith need a text");
  const auto fits = [&](const Value& one) {
    if (one.text() == nullptr) return false;
    return begins ? absl::StartsWith(text, *one.text()) : absl::EndsWith(text, *one.text());
  };
  if (wanted->list() == nullptr) return Value(fits(*wanted));
  bool any = false;
  for (const Value& one : *wanted->list()) any = any || fits(one);
  return Value(any);
}

Result Find(const std::string& text, const Arguments& arguments) {
  const Value* wanted = arguments.Find(0, "sub");
  if (wanted == nullptr || wanted->text() == nullptr) {
    return absl::InvalidArgumentError("find needs a text");
  }
  const size_t at = FindText(text, *wanted->text());
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(CharactersOf(absl::string_view(text).substr(0, at))));
}

Result Split(const std::string& text, const Arguments& arguments) {
  const Value* most = arguments.Find(1, "maxsplit");
  return SplitText(text, arguments.Find(0, "sep"), most == nullptr ? -1 : most->integer());
}

Result Replace(const std::string& text, const Arguments& arguments) {
  const Value* old = arguments.Find(0, "old");
  const Value* by = arguments.Find(1, "new");
  if (old == nullptr || by == nullptr) {
    return absl::InvalidArgumentError("replace needs an old and a new text");
  }
  return ReplaceText(text, old->ToText(), by->ToText(), arguments.Find(2, "count"));
}

Result Join(const std::string& text, const Arguments& arguments) {
  const Value* items = arguments.Find(0, "iterable");
  if (items == nullptr) return absl::InvalidArgumentError("join needs a list");
  ASSIGN_OR_RETURN(Value between, Value::Text(text));
  return ApplyFilter("join", *items, {.values = {std::move(between)}});
}

const std::map<absl::string_view, TextMethod>& TextMethods() {
  using Text = const std::string&;
  using Given = const Arguments&;
  static const auto& methods = *new std::map<absl::string_view, TextMethod>{
      {"strip", [](Text t, Given a) { return Strip(t, a, true, true); }},
      {"lstrip", [](Text t, Given a) { return Strip(t, a, true, false); }},
      {"rstrip", [](Text t, Given a) { return Strip(t, a, false, true); }},
      {"startswith", [](Text t, Given a) { return Borders(t, a, true); }},
      {"endswith", [](Text t, Given a) { return Borders(t, a, false); }},
      {"upper", [](Text t, Given) { return Value::Text(Upper(t)); }},
      {"lower", [](Text t, Given) { return Value::Text(Lower(t)); }},
      {"title", [](Text t, Given) { return Value::Text(WithCapitals(t, true)); }},
      {"capitalize", [](Text t, Given) { return Value::Text(WithCapitals(t, false)); }},
      {"split", Split},
      {"replace", Replace},
      {"find", Find},
      {"join", Join},
  };
  return methods;
}

std::optional<Value> DictMethod(const Value& dict, absl::string_view name) {
  if (name == "items") {
    return Value::Method([dict](const Arguments&) { return ApplyFilter("items", dict, {}); }, dict);
  }
  if (name == "keys") {
    return Value::Method([dict](const Arguments&) { return ApplyFilter("list", dict, {}); }, dict);
  }
  if (name == "values") {
    const auto values = [dict](const Arguments&) {
      Value::List values;
      for (const auto& [key, value] : *dict.dict()) values.push_back(value);
      return Value::Of(std::move(values));
    };
    return Value::Method(values, dict);
  }
  if (name != "get") return std::nullopt;
  const auto get = [dict](const Arguments& arguments) -> Result {
    const Value* key = arguments.Find(0, "key");
    const Value* instead = arguments.Find(1, "default");
    const Value* found = key == nullptr ? nullptr : dict.Find(key->ToText());
    return found != nullptr ? *found : instead != nullptr ? *instead : Value();
  };
  return Value::Method(get, dict);
}

Result Range(const Arguments& arguments) {
  constexpr int64_t kItemsMax = 100'000;
  if (arguments.values.empty()) return absl::InvalidArgumentError("range needs a number");
  const bool one = arguments.values.size() == 1;
  const int64_t begin = one ? 0 : arguments.values[0].integer();
  const int64_t end = arguments.values[one ? 0 : 1].integer();
  const int64_t step = arguments.values.size() > 2 ? arguments.values[2].integer() : 1;
  if (step == 0) return absl::InvalidArgumentError("the step of range is 0");
  Value::List items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) == kItemsMax) {
      return absl::ResourceExhaustedError(absl::StrCat("range of over ", kItemsMax, " numbers"));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::Of(std::move(items));
}

Value::Dict Named(const Arguments& arguments) {
  Value::Dict items;
  absl::flat_hash_map<absl::string_view, size_t> places;  // of the keys in the list
  const auto add = [&](const std::string& key, const Value& value) {
    const auto [place, is_new] = places.emplace(key, items.size());
    if (is_new) items.emplace_back(key, value);
  };
  for (const auto& [key, value] : arguments.named) add(key, value);
  for (const Value& value : arguments.values) {
    if (value.dict() == nullptr) continue;
    for (const auto& [key, item] : *value.dict()) add(key, item);
  }
  return items;
}

}  // namespace

std::optional<Value> MethodOf(const Value& value, absl::string_view name) {
  if (value.is_namespace()) return std::nullopt;  // it could be made to hold itself
  if (value.dict() != nullptr) return DictMethod(value, name);
  const std::string* text = value.text();
  const auto method = TextMethods().find(name);
  if (text == nullptr || method == TextMethods().end()) return std::nullopt;
  const auto call = [value, method = method->second](const Arguments& arguments) {
    return method(*value.text(), arguments);
  };
  return Value::Method(call, value);
}

Value::Dict GlobalFunctions(absl::Time now) {
  Value::Dict functions;
  functions.emplace_back("range", Value(Value::Call(Range)));
  functions.emplace_back("namespace", Value(Value::Call([](const Arguments& arguments) -> Result {
                           ASSIGN_OR_RETURN(const Value checked, Value::Of(Named(arguments)));
                           return Value::Namespace(*checked.dict());
                         })));
  functions.emplace_back(
      "dict",
      Value(Value::Call([](const Arguments& arguments) { return Value::Of(Named(arguments)); })));
  functions.emplace_back(
      "raise_exception", Value(Value::Call([](const Arguments& arguments) -> Result {
        const Value* message = arguments.Find(0, "message");
        return absl::FailedPreconditionError(message == nullptr
                                                 ? "the chat template refuses these messages"
                                                 : message->ToText().substr(0, kRefusalBytesMax));
      })));
  functions.emplace_back(
      "strftime_now", Value(Value::Call([now](const Arguments& arguments) -> Result {
        const Value* given = arguments.Find(0, "format");
        const std::string format = given == nullptr ? "%Y-%m-%d" : given->ToText();
        if (format.size() > kTimeFormatBytesMax) {
          return absl::InvalidArgumentError(
              absl::StrCat("a format of time of over ", kTimeFormatBytesMax, " bytes"));
        }
        return Value::Text(absl::FormatTime(format, now, absl::UTCTimeZone()));
      })));
  return functions;
}

}  // namespace espalier
