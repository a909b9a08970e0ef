#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "worker/chat/functions.h"
#include "worker/chat/interpreter.h"
#include "worker/chat/text_functions.h"

namespace espalier {
namespace {

constexpr size_t kMapArgumentsMax = 8;
// Items times bytes of all: each meets the others.
constexpr int64_t kUniqueMost = int64_t{1} << 28;

using Result = absl::StatusOr<Value>;
using Filter = Result (*)(const Value&, const Arguments&);

// The argument as text; `absent` without one.
std::string TextArgument(const Arguments& arguments, size_t position, absl::string_view name,
                         absl::string_view absent) {
  const Value* found = arguments.Find(position, name);
  return found == nullptr ? std::string(absent) : found->ToText();
}

// Items of a list, by an attribute ("a.b") where one is named.
Value Attribute(const Value& item, absl::string_view path) {
  const Value* found = &item;
  while (found != nullptr && !path.empty()) {
    const size_t dot = path.find('.');
    found = found->Find(path.substr(0, dot));
    path = dot == path.npos ? "" : path.substr(dot + 1);
  }
  return found == nullptr ? Value(Value::Undefined{std::string(path)}) : *found;
}

Arguments Rest(const Arguments& arguments, size_t from) {
  Arguments rest;
  for (size_t i = from; i < arguments.values.size(); ++i)
    rest.values.push_back(arguments.values[i]);
  return rest;
}

Result Length(const Value& value, const Arguments&) {
  if (const auto* text = value.text()) return Value(static_cast<int64_t>(CharactersOf(*text)));
  if (value.dict() != nullptr) return Value(static_cast<int64_t>(value.dict()->size()));
  if (value.list() != nullptr) return Value(static_cast<int64_t>(value.list()->size()));
  ASSIGN_OR_RETURN(const Value::List items, ItemsOf(value));
  return Value(static_cast<int64_t>(items.size()));
}

Result ToJson(const Value& value, const Arguments& arguments) {
  const Value* indent = arguments.Find(1, "indent");  // ensure_ascii comes first
  if (indent == nullptr && !arguments.values.empty()) indent = &arguments.values.front();
  std::optional<int64_t> spaces;
  if (indent != nullptr && !indent->is_none() && !indent->is_bool()) spaces = indent->integer();
  ASSIGN_OR_RETURN(std::string text, PythonJson(value, spaces));
  return Value::Text(std::move(text));
}

Result Default(const Value& value, const Arguments& arguments) {
  const Value* instead = arguments.Find(0, "default_value");
  const Value* also_false = arguments.Find(1, "boolean");
  const bool replace =
      value.is_undefined() || (also_false != nullptr && also_false->IsTrue() && !value.IsTrue());
  if (!replace) return value;
  return instead == nullptr ? Value::Text("") : Result(*instead);
}

Result Join(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Value::List items, ItemsOf(value));
  const std::string between = TextArgument(arguments, 0, "d", "");
  const std::string attribute = TextArgument(arguments, 1, "attribute", "");
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    absl::StrAppend(&out, i > 0 ? between : "", Attribute(items[i], attribute).ToText());
    RETURN_IF_ERROR(CheckTextSize(out.size()));
  }
  return Value::Text(std::move(out));
}

Result List(const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(Value::List items, ItemsOf(value));
  return Value::Of(std::move(items));
}

Result First(const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(const Value::List items, ItemsOf(value));
  return items.empty() ? Value(Value::Undefined{"first"}) : items.front();
}

Result Last(const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(const Value::List items, ItemsOf(value));
  return items.empty() ? Value(Value::Undefined{"last"}) : items.back();
}

Result Reverse(const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(Value::List items, ItemsOf(value));
  std::reverse(items.begin(), items.end());
  if (value.text() == nullptr) return Value::Of(std::move(items));
  std::string out;
  for (const Value& item : items) out += item.ToText();
  return Value::Text(std::move(out));
}

Result Items(const Value& value, const Arguments&) {
  Value::List pairs;
  if (value.dict() != nullptr) {
    for (const auto& [key, item] : *value.dict()) {
      ASSIGN_OR_RETURN(Value name, Value::Text(key));
      ASSIGN_OR_RETURN(Value pair, Value::Of(Value::List{std::move(name), item}));
      pairs.push_back(std::move(pair));
    }
  } else if (!value.is_undefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("items is of a dict, not of a ", value.KindName()));
  }
  return Value::Of(std::move(pairs));
}

// Sorted by an attribute, or by themselves.
absl::Status SortItems(Value::List& items, const std::string& attribute, bool reverse) {
  absl::Status status;
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
    const absl::StatusOr<int> order = reverse
                                          ? Order(Attribute(b, attribute), Attribute(a, attribute))
                                          : Order(Attribute(a, attribute), Attribute(b, attribute));
    if (!order.ok()) status = order.status();
    return order.ok() && *order < 0;
  });
  return status;
}

Result Sort(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(Value::List items, ItemsOf(value));
  const Value* reverse = arguments.Find(0, "reverse");
  RETURN_IF_ERROR(SortItems(items, TextArgument(arguments, 2, "attribute", ""),
                            reverse != nullptr && reverse->IsTrue()));
  return Value::Of(std::move(items));
}

Result DictSort(const Value& value, const Arguments&) {
  if (value.dict() == nullptr) return absl::InvalidArgumentError("dictsort is of a dict");
  Value::Dict items = *value.dict();
  std::stable_sort(items.begin(), items.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  ASSIGN_OR_RETURN(const Value sorted, Value::Of(std::move(items)));
  return Items(sorted, {});
}

Result Unique(const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(const Value::List items, ItemsOf(value));
  Value::List kept;
  if (static_cast<int64_t>(items.size()) * value.bytes() > kUniqueMost) {
    return absl::ResourceExhaustedError("unique of too many items, or of too large ones");
  }
  for (const Value& item : items) {
    const auto equal = [&](const Value& other) { return other.Equals(item); };
    if (std::none_of(kept.begin(), kept.end(), equal)) kept.push_back(item);
  }
  return Value::Of(std::move(kept));
}

Result Map(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Value::List items, ItemsOf(value));
  const Value* attribute = arguments.Find(1000, "attribute");
  const Value* instead = arguments.Find(1000, "default");
  if (attribute == nullptr && arguments.values.empty()) {
    return absl::InvalidArgumentError("map needs a filter or an attribute");
  }
  if (arguments.values.size() > kMapArgumentsMax) {  // map('map', 'map', ...) takes the stack
    return absl::ResourceExhaustedError(
        absl::StrCat("map with over ", kMapArgumentsMax, " arguments"));
  }
  Value::List mapped;
  size_t bytes = 0;
  for (const Value& item : items) {
    if (attribute != nullptr) {
      Value found = Attribute(item, attribute->ToText());
      mapped.push_back(found.is_undefined() && instead != nullptr ? *instead : std::move(found));
      continue;
    }
    ASSIGN_OR_RETURN(Value made,
                     ApplyFilter(arguments.values[0].ToText(), item, Rest(arguments, 1)));
    bytes += static_cast<size_t>(made.bytes());
    RETURN_IF_ERROR(CheckTextSize(bytes));
    mapped.push_back(std::move(made));
  }
  return Value::Of(std::move(mapped));
}

// Items that pass a test, of themselves or of an attribute.
Result Chosen(const Value& value, const Arguments& arguments, bool by_attribute, bool wanted) {
  ASSIGN_OR_RETURN(const Value::List items, ItemsOf(value));
  const size_t test = by_attribute ? 1 : 0;
  if (by_attribute && arguments.values.empty()) {
    return absl::InvalidArgumentError("selectattr and rejectattr need the name of an attribute");
  }
  Value::List kept;
  for (const Value& item : items) {
    const Value of = by_attribute ? Attribute(item, arguments.values[0].ToText()) : item;
    bool passes = of.IsTrue();
    if (arguments.values.size() > test) {
      ASSIGN_OR_RETURN(passes,
                       ApplyTest(arguments.values[test].ToText(), of, Rest(arguments, test + 1)));
    }
    if (passes == wanted) kept.push_back(item);
  }
  return Value::Of(std::move(kept));
}

Result Sum(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Value::List items, ItemsOf(value));
  const std::string attribute = TextArgument(arguments, 0, "attribute", "");
  double sum = 0;
  bool real = false;
  for (const Value& item : items) {
    const Value part = Attribute(item, attribute);
    real = real || part.is_real();
    sum += part.real();
  }
  return real || std::fabs(sum) > 9e18 ? Value(sum) : Value(static_cast<int64_t>(sum));
}

Result Extreme(const Value& value, int sign) {
  ASSIGN_OR_RETURN(const Value::List items, ItemsOf(value));
  if (items.empty()) return Value(Value::Undefined{"min or max of nothing"});
  const Value* best = &items.front();
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(const int order, Order(item, *best));
    if (order * sign > 0) best = &item;
  }
  return *best;
}

Result Integer(const Value& value, const Arguments& arguments) {
  if (value.is_number()) return Value(value.integer());
  const Value* instead = arguments.Find(0, "default");
  double read = 0;
  if (value.text() != nullptr && absl::SimpleAtod(*value.text(), &read)) {
    return Value(Value(read).integer());
  }
  return instead == nullptr ? Value(int64_t{0}) : *instead;
}

Result Real(const Value& value, const Arguments& arguments) {
  if (value.is_number()) return Value(value.real());
  const Value* instead = arguments.Find(0, "default");
  double read = 0;
  if (value.text() != nullptr && absl::SimpleAtod(*value.text(), &read)) return Value(read);
  return instead == nullptr ? Value(0.0) : *instead;
}

Result Absolute(const Value& value, const Arguments&) {
  if (value.is_real()) return Value(std::fabs(value.real()));
  return value.integer() < 0 ? BinaryOf("-", Value(int64_t{0}), value) : Value(value.integer());
}

Result Replace(const Value& value, const Arguments& arguments) {
  return ReplaceText(value.ToText(), TextArgument(arguments, 0, "old", ""),
                     TextArgument(arguments, 1, "new", ""), arguments.Find(2, "count"));
}

Result Indent(const Value& value, const Arguments& arguments) {
  const Value* width = arguments.Find(0, "width");
  const Value* first = arguments.Find(1, "first");
  const Value* blank = arguments.Find(2, "blank");
  const std::string spaces =
      width != nullptr && width->text() != nullptr
          ? *width->text()
          : std::string(static_cast<size_t>(
                            std::clamp<int64_t>(width == nullptr ? 4 : width->integer(), 0, 1000)),
                        ' ');
  return IndentLines(value.ToText(), spaces, first != nullptr && first->IsTrue(),
                     blank != nullptr && blank->IsTrue());
}

Result ByMethod(const char* method, const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Value text, Value::Text(value.ToText()));
  const std::optional<Value> call = MethodOf(text, method);
  return (*call->call())(arguments);
}

const std::map<absl::string_view, Filter>& Filters() {
  static const auto& filters = *new std::map<absl::string_view, Filter>{
      {"length", Length},
      {"count", Length},
      {"tojson", ToJson},
      {"default", Default},
      {"d", Default},
      {"join", Join},
      {"list", List},
      {"first", First},
      {"last", Last},
      {"reverse", Reverse},
      {"items", Items},
      {"sort", Sort},
      {"dictsort", DictSort},
      {"unique", Unique},
      {"map", Map},
      {"sum", Sum},
      {"int", Integer},
      {"float", Real},
      {"abs", Absolute},
      {"replace", Replace},
      {"indent", Indent},
      {"min", [](const Value& v, const Arguments&) { return Extreme(v, -1); }},
      {"max", [](const Value& v, const Arguments&) { return Extreme(v, 1); }},
      {"select", [](const Value& v, const Arguments& a) { return Chosen(v, a, false, true); }},
      {"reject", [](const Value& v, const Arguments& a) { return Chosen(v, a, false, false); }},
      {"selectattr", [](const Value& v, const Arguments& a) { return Chosen(v, a, true, true); }},
      {"rejectattr", [](const Value& v, const Arguments& a) { return Chosen(v, a, true, false); }},
      {"string", [](const Value& v, const Arguments&) { return Value::Text(v.ToText()); }},
      {"safe", [](const Value& v, const Arguments&) { return Result(v); }},
      {"trim", [](const Value& v, const Arguments& a) { return ByMethod("strip", v, a); }},
      {"upper", [](const Value& v, const Arguments& a) { return ByMethod("upper", v, a); }},
      {"lower", [](const Value& v, const Arguments& a) { return ByMethod("lower", v, a); }},
      {"title", [](const Value& v, const Arguments& a) { return ByMethod("title", v, a); }},
      {"capitalize",
       [](const Value& v, const Arguments& a) { return ByMethod("capitalize", v, a); }},
  };
  return filters;
}

}  // namespace

absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value,
                                  const Arguments& arguments) {
  const auto found = Filters().find(name);
  if (found != Filters().end()) return found->second(value, arguments);
  std::vector<absl::string_view> names;
  for (const auto& [known, filter] : Filters()) names.push_back(known);
  return absl::UnimplementedError(absl::StrCat(
      "the filter '", name.substr(0, 40), "' is not known; known: ", absl::StrJoin(names, ", ")));
}

}  // namespace espalier
