#include "worker/chat/value.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr int64_t kBytesMax = int64_t{64} << 20;
constexpr int kDepthMax = 100;  // a value is written, compared and freed on the stack
constexpr size_t kItemsMax = size_t{1} << 20;
constexpr size_t kMembersMax = 4096;  // a member is looked for among all
constexpr size_t kNameBytesMax = 80;

absl::Status TooLarge() {
  return absl::ResourceExhaustedError(
      "the chat template makes a value of over 64 MiB, 2^20 items or 4,096 members, or one nested "
      "over 100 levels deep");
}

// The members of a dict by their keys; of a key that is there more than once the first one.
absl::flat_hash_map<absl::string_view, const Value*> MembersOf(const Value::Dict& dict) {
  absl::flat_hash_map<absl::string_view, const Value*> members;
  for (const auto& [key, value] : dict) members.emplace(key, &value);
  return members;
}

}  // namespace

absl::Status CheckTextSize(size_t bytes) {
  if (bytes <= static_cast<size_t>(kBytesMax)) return absl::OkStatus();
  return absl::ResourceExhaustedError("the chat template makes a text of over 64 MiB");
}

const Value* Arguments::Find(size_t position, absl::string_view name) const {
  if (position < values.size()) return &values[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

int64_t Value::bytes() const {
  if (const std::string* string = text()) return static_cast<int64_t>(string->size()) + 16;
  if (const auto* list = std::get_if<ListPointer>(&data_)) return (*list)->bytes;
  if (const auto* dict = std::get_if<DictPointer>(&data_)) return (*dict)->bytes;
  if (const auto* function = std::get_if<FunctionPointer>(&data_)) return (*function)->bytes;
  return 16;
}

int Value::depth() const {
  if (const auto* list = std::get_if<ListPointer>(&data_)) return (*list)->depth;
  if (const auto* dict = std::get_if<DictPointer>(&data_)) return (*dict)->depth;
  if (const auto* function = std::get_if<FunctionPointer>(&data_)) return (*function)->depth;
  return 0;
}

absl::Status Value::Measure(const Value& item, int64_t& bytes, int& depth) {
  if (item.is_namespace()) {
    return absl::InvalidArgumentError("a namespace cannot be part of another value");
  }
  bytes += item.bytes();
  depth = std::max(depth, item.depth() + 1);
  return bytes > kBytesMax || depth > kDepthMax ? TooLarge() : absl::OkStatus();
}

Value::Value(Undefined value) : data_(Undefined{value.name.substr(0, kNameBytesMax)}) {}

Value::Value(Call call) : data_(std::make_shared<const Function>(Function{std::move(call)})) {}

Value Value::Method(Call call, const Value& of) {
  Value value;
  value.data_ = std::make_shared<const Function>(
      Function{std::move(call), /*is_method=*/true, of.bytes(), of.depth()});
  return value;
}

absl::StatusOr<Value> Value::Text(std::string text) {
  if (static_cast<int64_t>(text.size()) > kBytesMax) return TooLarge();
  Value value;
  value.data_ = std::make_shared<const std::string>(std::move(text));
  return value;
}

absl::StatusOr<Value> Value::Of(List items) {
  if (items.size() > kItemsMax) return TooLarge();
  int64_t bytes = 16;
  int depth = 0;
  for (const Value& item : items) RETURN_IF_ERROR(Measure(item, bytes, depth));
  Value value;
  value.data_ = std::make_shared<const Sized<List>>(Sized<List>{std::move(items), bytes, depth});
  return value;
}

absl::StatusOr<Value> Value::Of(Dict items) {
  if (items.size() > kMembersMax) return TooLarge();
  int64_t bytes = 16;
  int depth = 0;
  for (const auto& [key, item] : items) {
    bytes += static_cast<int64_t>(key.size());
    RETURN_IF_ERROR(Measure(item, bytes, depth));
  }
  Value value;
  value.data_ = std::make_shared<Sized<Dict>>(Sized<Dict>{std::move(items), bytes, depth});
  return value;
}

Value Value::Namespace(Dict items) {
  Value value;
  value.data_ = std::make_shared<Sized<Dict>>(Sized<Dict>{std::move(items), 0, 0, true});
  return value;
}

absl::StatusOr<Value> Value::FromJson(const nlohmann::ordered_json& json) {
  if (json.is_null()) return Value();
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_string()) return Text(json.get<std::string>());
  if (json.is_array()) {
    List items;
    for (const auto& one : json) {
      ASSIGN_OR_RETURN(Value item, FromJson(one));
      items.push_back(std::move(item));
    }
    return Of(std::move(items));
  }
  Dict items;
  for (const auto& [key, one] : json.items()) {
    ASSIGN_OR_RETURN(Value item, FromJson(one));
    items.emplace_back(key, std::move(item));
  }
  return Of(std::move(items));
}

const std::string* Value::text() const {
  const auto* pointer = std::get_if<TextPointer>(&data_);
  return pointer == nullptr ? nullptr : pointer->get();
}

const Value::List* Value::list() const {
  const auto* pointer = std::get_if<ListPointer>(&data_);
  return pointer == nullptr ? nullptr : &(*pointer)->items;
}

const Value::Dict* Value::dict() const {
  const auto* pointer = std::get_if<DictPointer>(&data_);
  return pointer == nullptr ? nullptr : &(*pointer)->items;
}

const Value::Call* Value::call() const {
  const auto* pointer = std::get_if<FunctionPointer>(&data_);
  return pointer == nullptr ? nullptr : &(*pointer)->call;
}

bool Value::is_namespace() const {
  const auto* pointer = std::get_if<DictPointer>(&data_);
  return pointer != nullptr && (*pointer)->is_namespace;
}

bool Value::is_method() const {
  const auto* pointer = std::get_if<FunctionPointer>(&data_);
  return pointer != nullptr && (*pointer)->is_method;
}

int64_t Value::integer() const {
  if (const auto* value = std::get_if<bool>(&data_)) return *value ? 1 : 0;
  if (const auto* value = std::get_if<double>(&data_)) {
    return *value > -9e18 && *value < 9e18 ? static_cast<int64_t>(*value) : 0;
  }
  const auto* value = std::get_if<int64_t>(&data_);
  return value == nullptr ? 0 : *value;
}

double Value::real() const {
  const auto* value = std::get_if<double>(&data_);
  return value == nullptr ? static_cast<double>(integer()) : *value;
}

bool Value::IsTrue() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return real() != 0;
  if (const std::string* string = text()) return !string->empty();
  if (const List* items = list()) return !items->empty();
  if (const Dict* items = dict()) return is_namespace() || !items->empty();
  return true;
}

bool Value::Equals(const Value& other) const {
  if (is_number() && other.is_number()) {
    return is_real() || other.is_real() ? real() == other.real() : integer() == other.integer();
  }
  if (data_.index() != other.data_.index()) return false;
  if (const std::string* string = text()) return *string == *other.text();
  if (const List* items = list()) {
    const auto equal = [](const Value& a, const Value& b) { return a.Equals(b); };
    return std::equal(items->begin(), items->end(), other.list()->begin(), other.list()->end(),
                      equal);
  }
  if (const Dict* items = dict()) {
    if (items == other.dict()) return true;
    if (items->size() != other.dict()->size()) return false;
    const auto members = MembersOf(*other.dict());
    return std::all_of(items->begin(), items->end(), [&](const auto& item) {
      const auto found = members.find(item.first);
      return found != members.end() && item.second.Equals(*found->second);
    });
  }
  return is_none() || is_undefined() || call() == other.call();
}

std::string Value::ToText() const { return text() != nullptr ? *text() : ToRepr(); }

std::string Value::ToRepr() const { return PythonRepr(*this); }

absl::string_view Value::KindName() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "none";
  if (is_bool()) return "bool";
  if (is_integer()) return "integer";
  if (is_real()) return "float";
  if (text() != nullptr) return "string";
  if (list() != nullptr) return "list";
  if (is_namespace()) return "namespace";
  return dict() != nullptr ? "dict" : "function";
}

const Value* Value::Find(absl::string_view key) const {
  const Dict* items = dict();
  if (items == nullptr) return nullptr;
  for (const auto& [name, value] : *items) {
    if (name == key) return &value;
  }
  return nullptr;
}

absl::Status Value::Assign(const std::string& key, Value value) const {
  if (!is_namespace()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", key, "' is set of a ", KindName(), "; only a namespace can be changed"));
  }
  int64_t bytes = 0;
  int depth = 0;
  RETURN_IF_ERROR(Measure(value, bytes, depth));
  Dict& items = std::get<DictPointer>(data_)->items;
  for (auto& [name, old] : items) {
    if (name != key) continue;
    old = std::move(value);
    return absl::OkStatus();
  }
  if (items.size() == kMembersMax) return TooLarge();
  items.emplace_back(key, std::move(value));
  return absl::OkStatus();
}

}  // namespace espalier
