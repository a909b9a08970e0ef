// Value: what an expression of a chat template has as its value, as in Python. Used by worker/chat.
// Values are immutable but for namespaces, which belong to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class Value;

// What a call is given.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at a position or with a name; nullptr when there is none.
  const Value* Find(size_t position, absl::string_view name) const;
};

class Value {
 public:
  struct Undefined {
    std::string name;  // of what is not there; its first 80 bytes are kept
  };
  struct None {};
  using List = std::vector<Value>;
  using Dict = std::vector<std::pair<std::string, Value>>;  // in the order of insertion
  using Call = std::function<absl::StatusOr<Value>(const Arguments&)>;

  Value() : data_(None{}) {}
  explicit Value(bool value) : data_(value) {}
  explicit Value(int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(Undefined value);
  explicit Value(Call call);
  // A method, whose call holds what it is of.
  static Value Method(Call call, const Value& of);
  // RESOURCE_EXHAUSTED for what is too large or nested too deep: 64 MiB, 2^20 items, 4,096 members
  // of a dict, 100 levels. A list may be in itself many times over, so its size is that of its
  // text.
  static absl::StatusOr<Value> Text(std::string text);
  static absl::StatusOr<Value> Of(List items);
  static absl::StatusOr<Value> Of(Dict items);
  static absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json);
  static Value Namespace(Dict items);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(data_); }
  bool is_real() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_integer() || is_real() || is_bool(); }
  // nullptr when it is no such thing.
  const Undefined* undefined() const { return std::get_if<Undefined>(&data_); }
  const std::string* text() const;
  const List* list() const;
  const Dict* dict() const;  // of a namespace too
  const Call* call() const;
  bool is_namespace() const;
  bool is_method() const;

  // Of a number or a bool; 0 for anything else.
  int64_t integer() const;
  double real() const;

  bool IsTrue() const;
  bool Equals(const Value& other) const;
  // What {{ }} writes, as Python's str(); and as repr() within a list.
  std::string ToText() const;
  std::string ToRepr() const;
  // Bytes of its text, about; of a number 16; of a method as of what it is of.
  int64_t bytes() const;
  // "string", "list" and so on, for messages.
  absl::string_view KindName() const;
  // The value of a key of a dict; nullptr without one.
  const Value* Find(absl::string_view key) const;
  // Sets a key of a namespace.
  absl::Status Assign(const std::string& key, Value value) const;

 private:
  template <typename T>
  struct Sized {
    T items;
    int64_t bytes = 0;  // of its text, about
    int depth = 0;
    bool is_namespace = false;
  };
  struct Function {
    Call call;
    bool is_method = false;
    int64_t bytes = 16;
    int depth = 0;
  };
  using TextPointer = std::shared_ptr<const std::string>;
  using ListPointer = std::shared_ptr<const Sized<List>>;
  using DictPointer = std::shared_ptr<Sized<Dict>>;
  using FunctionPointer = std::shared_ptr<const Function>;

  int depth() const;
  static absl::Status Measure(const Value& item, int64_t& bytes, int& depth);

  std::variant<Undefined, None, bool, int64_t, double, TextPointer, ListPointer, DictPointer,
               FunctionPointer>
      data_;
};

// RESOURCE_EXHAUSTED for over 64 MiB, more than a text may have.
absl::Status CheckTextSize(size_t bytes);

// Python's repr().
std::string PythonRepr(const Value& value);

// Python's json.dumps(ensure_ascii=False): with `indent` spaces a level, else on one line.
// INVALID_ARGUMENT for what JSON does not have.
absl::StatusOr<std::string> PythonJson(const Value& value, std::optional<int64_t> indent);

}  // namespace espalier
