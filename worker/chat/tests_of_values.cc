// Tests (`x is defined`), and how values compare.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/chat/functions.h"
#include "worker/chat/text_functions.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

using Test = bool (*)(const Value&);

bool IsIterable(const Value& v) {
  return v.list() != nullptr || v.text() != nullptr || v.dict() != nullptr || v.is_undefined();
}

const std::map<absl::string_view, Test>& Tests() {
  static const auto& tests = *new std::map<absl::string_view, Test>{
      {"defined", [](const Value& v) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v) { return v.is_undefined(); }},
      {"none", [](const Value& v) { return v.is_none(); }},
      {"string", [](const Value& v) { return v.text() != nullptr; }},
      {"mapping", [](const Value& v) { return v.dict() != nullptr && !v.is_namespace(); }},
      {"iterable", IsIterable},
      {"sequence", IsIterable},
      {"number", [](const Value& v) { return v.is_number(); }},
      {"integer", [](const Value& v) { return v.is_integer(); }},
      {"float", [](const Value& v) { return v.is_real(); }},
      {"boolean", [](const Value& v) { return v.is_bool(); }},
      {"true", [](const Value& v) { return v.is_bool() && v.IsTrue(); }},
      {"false", [](const Value& v) { return v.is_bool() && !v.IsTrue(); }},
      {"callable", [](const Value& v) { return v.call() != nullptr; }},
      {"odd", [](const Value& v) { return v.integer() % 2 != 0; }},
      {"even", [](const Value& v) { return v.integer() % 2 == 0; }},
      {"lower", [](const Value& v) { return v.ToText() == Lower(v.ToText()); }},
      {"upper", [](const Value& v) { return v.ToText() == Upper(v.ToText()); }},
  };
  return tests;
}

// Tests with an argument, by their sign.
const std::map<absl::string_view, absl::string_view>& Comparisons() {
  static const auto& comparisons = *new std::map<absl::string_view, absl::string_view>{
      {"equalto", "=="}, {"eq", "=="},         {"ne", "!="}, {"lt", "<"},
      {"lessthan", "<"}, {"greaterthan", ">"}, {"gt", ">"},  {"le", "<="},
      {"ge", ">="},      {"divisibleby", "%"}, {"in", "in"}, {"sameas", "=="}};
  return comparisons;
}

absl::StatusOr<bool> CompareWith(absl::string_view sign, const Value& value, const Value& other) {
  if (sign == "==") return value.Equals(other);
  if (sign == "!=") return !value.Equals(other);
  if (sign == "in") return Contains(other, value);
  if (sign == "%") {
    if (other.integer() == 0) return absl::InvalidArgumentError("divisibleby 0");
    return other.integer() == -1 || value.integer() % other.integer() == 0;
  }
  ASSIGN_OR_RETURN(const int order, Order(value, other));
  return sign == "<" ? order < 0 : sign == ">" ? order > 0 : sign == "<=" ? order <= 0 : order >= 0;
}

}  // namespace

absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value,
                               const Arguments& arguments) {
  if (const auto test = Tests().find(name); test != Tests().end()) return test->second(value);
  const auto comparison = Comparisons().find(name);
  if (comparison != Comparisons().end()) {
    if (!arguments.values.empty()) {
      return CompareWith(comparison->second, value, arguments.values.front());
    }
    return absl::InvalidArgumentError(absl::StrCat("the test '", name, "' needs an argument"));
  }
  std::vector<absl::string_view> names;
  for (const auto& [known, test] : Tests()) names.push_back(known);
  for (const auto& [known, sign] : Comparisons()) names.push_back(known);
  return absl::UnimplementedError(absl::StrCat(
      "the test '", name.substr(0, 40), "' is not known; known: ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<int> Order(const Value& left, const Value& right) {
  const auto sign = [](auto a, auto b) { return a < b ? -1 : a > b ? 1 : 0; };
  if (left.is_number() && right.is_number()) {
    const bool real = left.is_real() || right.is_real();
    return real ? sign(left.real(), right.real()) : sign(left.integer(), right.integer());
  }
  if (left.text() != nullptr && right.text() != nullptr) {
    return sign(left.text()->compare(*right.text()), 0);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a ", left.KindName(), " and a ", right.KindName(), " have no order"));
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item) {
  if (const std::string* text = container.text()) {
    if (item.text() != nullptr) {
      return FindText(*text, *item.text()) != absl::string_view::npos;
    }
    return absl::InvalidArgumentError(absl::StrCat("a text is in a text, not a ", item.KindName()));
  }
  if (container.dict() != nullptr) {
    return item.text() != nullptr && container.Find(*item.text()) != nullptr;
  }
  ASSIGN_OR_RETURN(const Value::List items, ItemsOf(container));
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& one) { return one.Equals(item); });
}

absl::StatusOr<Value::List> ItemsOf(const Value& value) {
  if (value.list() != nullptr) return *value.list();
  Value::List items;
  if (value.is_undefined()) return items;
  if (value.dict() != nullptr) {
    for (const auto& [key, item] : *value.dict()) {
      ASSIGN_OR_RETURN(Value name, Value::Text(key));
      items.push_back(std::move(name));
    }
    return items;
  }
  if (value.text() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("a ", value.KindName(), " has no items"));
  }
  ASSIGN_OR_RETURN(const auto characters, CharactersIn(*value.text()));
  for (const absl::string_view character : characters) {
    ASSIGN_OR_RETURN(Value item, Value::Text(std::string(character)));
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace espalier
