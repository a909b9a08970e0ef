// Expressions of Interpreter.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/chat/functions.h"
#include "worker/chat/interpreter.h"
#include "worker/chat/lexer.h"
#include "worker/chat/text_functions.h"

namespace espalier {
namespace {

using Result = absl::StatusOr<Value>;
using Kind = Expression::Kind;

constexpr int64_t kFramesOfStep = 8;  // that a name is looked for in

Value Missing(absl::string_view name) { return Value(Value::Undefined{std::string(name)}); }

// The beginning of what an index or key is, which may be large.
std::string NameOf(const Value& key) {
  if (key.text() != nullptr) return key.text()->substr(0, 80);
  return key.is_number() ? key.ToText() : std::string(key.KindName());
}

absl::Status NotFor(absl::string_view sign, const Value& left, const Value& right) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", sign, "' is not for a ", left.KindName(), " and a ", right.KindName()));
}

Result Repeated(const std::string& text, int64_t times) {
  constexpr int64_t kTooOften = (int64_t{1} << 26) + 1;  // of any text that is not empty
  times = std::clamp<int64_t>(times, 0, kTooOften);
  RETURN_IF_ERROR(CheckTextSize(text.size() * static_cast<size_t>(times)));
  std::string out;
  for (int64_t i = 0; i < times && !text.empty(); ++i) out += text;
  return Value::Text(std::move(out));
}

Result RealOf(absl::string_view sign, double a, double b) {
  if (sign == "+") return Value(a + b);
  if (sign == "-") return Value(a - b);
  if (sign == "*") return Value(a * b);
  if (sign == "**") return Value(std::pow(a, b));
  if (b == 0) return absl::InvalidArgumentError("division by 0");
  if (sign == "/") return Value(a / b);
  const double whole = std::floor(a / b);
  return sign == "//" ? Value(whole) : Value(a - whole * b);
}

// Of integers, but '/', which gives a real number.
Result IntegerOf(absl::string_view sign, int64_t a, int64_t b) {
  int64_t out = 0;
  bool over = false;
  if (sign == "+") {
    over = __builtin_add_overflow(a, b, &out);
  } else if (sign == "-") {
    over = __builtin_sub_overflow(a, b, &out);
  } else if (sign == "*") {
    over = __builtin_mul_overflow(a, b, &out);
  } else if (sign == "**") {
    if (b < 0) return RealOf(sign, static_cast<double>(a), static_cast<double>(b));
    over = b > 64 && (a > 1 || a < -1);
    out = 1;
    const int64_t times = b > 64 ? b % 2 : b;  // of 0, 1 and -1
    for (int64_t i = 0; i < times && !over; ++i) over = __builtin_mul_overflow(out, a, &out);
    if (a == 0 && b > 0) out = 0;
  } else {
    if (b == 0) return absl::InvalidArgumentError("division by 0");
    if (b == -1) return sign == "//" ? IntegerOf("-", 0, a) : Result(Value(int64_t{0}));
    const bool down = a % b != 0 && (a < 0) != (b < 0);  // the rest has b's sign, as in Python
    out = sign == "%" ? a % b + (down ? b : 0) : a / b - (down ? 1 : 0);
  }
  if (over) return absl::InvalidArgumentError("a number is too large");
  return Value(out);
}

// The value at an index that may count from the end.
template <typename T>
const T* At(const std::vector<T>& items, int64_t index) {
  const auto size = static_cast<int64_t>(items.size());
  if (index < 0) index += size;
  return index >= 0 && index < size ? &items[static_cast<size_t>(index)] : nullptr;
}

}  // namespace

absl::StatusOr<Value> BinaryOf(absl::string_view sign, const Value& left, const Value& right) {
  if (sign == "~") return Value::Text(left.ToText() + right.ToText());
  if (left.is_number() && right.is_number()) {
    const bool real = left.is_real() || right.is_real() || sign == "/";
    return real ? RealOf(sign, left.real(), right.real())
                : IntegerOf(sign, left.integer(), right.integer());
  }
  if (sign == "+" && left.text() != nullptr && right.text() != nullptr) {
    return Value::Text(*left.text() + *right.text());
  }
  if (sign == "+" && left.list() != nullptr && right.list() != nullptr) {
    Value::List items = *left.list();
    items.insert(items.end(), right.list()->begin(), right.list()->end());
    return Value::Of(std::move(items));
  }
  if (sign == "*" && left.text() != nullptr && right.is_integer()) {
    return Repeated(*left.text(), right.integer());
  }
  return NotFor(sign, left, right);
}

absl::StatusOr<Value> Interpreter::Evaluate(const Expression& expression) {
  RETURN_IF_ERROR(Step(expression.line));
  Result value = EvaluateKind(expression);
  // These are there already.
  const Kind kind = expression.kind;
  const bool found = kind == Kind::kLiteral || kind == Kind::kName || kind == Kind::kAttribute ||
                     kind == Kind::kItem;
  if (value.ok() && !found) Charge(*value);
  if (value.ok() || absl::IsFailedPrecondition(value.status()) ||
      absl::StartsWith(value.status().message(), "chat template, line")) {
    return value;
  }
  return absl::Status(value.status().code(), absl::StrCat("chat template, line ", expression.line,
                                                          ": ", value.status().message()));
}

absl::StatusOr<Value> Interpreter::EvaluateKind(const Expression& e) {
  const RecursionLimit::Level level(depth_);
  switch (e.kind) {
    case Kind::kLiteral:
      return e.value;
    case Kind::kName: {
      steps_ += static_cast<int64_t>(frames_.size()) / kFramesOfStep;
      const Value* found = Lookup(e.text);
      return found == nullptr ? Missing(e.text) : *found;
    }
    case Kind::kList:
    case Kind::kDict:
      return Container(e);
    case Kind::kAttribute:
      return AttributeOf(e);
    case Kind::kItem:
      return ItemOf(e);
    case Kind::kSlice:
      return SliceOf(e);
    case Kind::kCall:
    case Kind::kFilter:
    case Kind::kTest:
      return Called(e);
    case Kind::kNot:
    case Kind::kAnd:
    case Kind::kOr:
      return Logical(e);
    case Kind::kNegative: {
      ASSIGN_OR_RETURN(const Value value, Evaluate(*e.parts[0]));
      if (!value.is_number()) return NotFor("-", Value(int64_t{0}), value);
      return value.is_real() ? Result(Value(-value.real())) : IntegerOf("-", 0, value.integer());
    }
    case Kind::kBinary: {
      ASSIGN_OR_RETURN(const Value left, Evaluate(*e.parts[0]));
      ASSIGN_OR_RETURN(const Value right, Evaluate(*e.parts[1]));
      if (e.text == "~") {
        ChargeAll(left);
        ChargeAll(right);
      }
      return BinaryOf(e.text, left, right);
    }
    case Kind::kCompare:
      return Compared(e);
    case Kind::kConditional:
      return Conditional(e);
  }
  return Value();
}

absl::StatusOr<Value> Interpreter::Container(const Expression& e) {
  if (e.kind == Kind::kList) {
    Value::List items;
    for (const ExpressionPointer& part : e.parts) {
      ASSIGN_OR_RETURN(Value item, Evaluate(*part));
      items.push_back(std::move(item));
    }
    return Value::Of(std::move(items));
  }
  Value::Dict items;
  for (size_t i = 0; i + 1 < e.parts.size(); i += 2) {
    ASSIGN_OR_RETURN(const Value key, Evaluate(*e.parts[i]));
    ASSIGN_OR_RETURN(Value item, Evaluate(*e.parts[i + 1]));
    if (key.text() == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("a key of a dict is a ", key.KindName(), "; only texts are supported"));
    }
    const auto same = std::find_if(items.begin(), items.end(),
                                   [&](const auto& one) { return one.first == *key.text(); });
    if (same != items.end()) {
      same->second = std::move(item);
    } else {
      items.emplace_back(*key.text(), std::move(item));
    }
  }
  return Value::Of(std::move(items));
}

absl::StatusOr<Value> Interpreter::AttributeOf(const Expression& e) {
  ASSIGN_OR_RETURN(const Value value, Evaluate(*e.parts[0]));
  if (value.dict() != nullptr) Charge(value);
  if (const auto* undefined = value.undefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", undefined->name, "' is undefined, and is asked for '", e.text, "'"));
  }
  if (!value.is_namespace()) {
    if (auto method = MethodOf(value, e.text)) return *std::move(method);
  }
  const Value* found = value.Find(e.text);
  return found == nullptr ? Missing(e.text) : *found;
}

absl::StatusOr<Value> Interpreter::ItemOf(const Expression& e) {
  ASSIGN_OR_RETURN(const Value value, Evaluate(*e.parts[0]));
  ASSIGN_OR_RETURN(const Value key, Evaluate(*e.parts[1]));
  if (value.list() == nullptr) ChargeItems(value);
  if (const auto* undefined = value.undefined()) {
    return absl::InvalidArgumentError(absl::StrCat("'", undefined->name, "' is undefined, and is ",
                                                   "asked for '", NameOf(key), "'"));
  }
  const Value* found = nullptr;
  if (key.text() != nullptr) {
    found = value.Find(*key.text());
    if (found == nullptr) {
      if (auto method = MethodOf(value, *key.text())) return *std::move(method);
    }
  } else if (key.is_integer() && value.list() != nullptr) {
    found = At(*value.list(), key.integer());
  } else if (key.is_integer() && value.text() != nullptr) {
    ASSIGN_OR_RETURN(const auto characters, CharactersIn(*value.text()));
    const absl::string_view* character = At(characters, key.integer());
    if (character == nullptr) return Missing("character");
    return Value::Text(std::string(*character));
  }
  return found == nullptr ? Missing(NameOf(key)) : *found;
}

absl::StatusOr<Value> Interpreter::SliceOf(const Expression& e) {
  ASSIGN_OR_RETURN(const Value value, Evaluate(*e.parts[0]));
  std::vector<Value> bounds(3);
  for (size_t i = 0; i < 3; ++i) {
    if (e.parts[i + 1] != nullptr) {
      ASSIGN_OR_RETURN(bounds[i], Evaluate(*e.parts[i + 1]));
    }
  }
  const int64_t step = bounds[2].is_none() ? 1 : bounds[2].integer();
  if (step == 0) return absl::InvalidArgumentError("the step of a slice is 0");
  if (value.is_undefined()) return absl::InvalidArgumentError("a slice of what is undefined");
  ChargeItems(value);
  Value::List items;
  std::vector<absl::string_view> characters;
  if (value.text() != nullptr) {
    ASSIGN_OR_RETURN(characters, CharactersIn(*value.text()));
  } else {
    ASSIGN_OR_RETURN(items, ItemsOf(value));
  }
  const auto size = static_cast<int64_t>(std::max(items.size(), characters.size()));
  const auto bound = [&](const Value& given, int64_t absent) {
    if (given.is_none()) return absent;
    const int64_t at = given.integer() < 0 ? given.integer() + size : given.integer();
    return step > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t begin = bound(bounds[0], step > 0 ? 0 : size - 1);
  const int64_t end = bound(bounds[1], step > 0 ? size : -1);
  Value::List taken;
  std::string text;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    const auto at = static_cast<size_t>(i);
    if (value.text() != nullptr) {
      absl::StrAppend(&text, characters[at]);
    } else {
      taken.push_back(items[at]);
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return value.text() != nullptr ? Value::Text(std::move(text)) : Value::Of(std::move(taken));
}

absl::StatusOr<Arguments> Interpreter::ArgumentsOf(const Expression& e) {
  Arguments arguments;
  for (size_t i = 1; i < e.parts.size(); ++i) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*e.parts[i]));
    arguments.values.push_back(std::move(value));
  }
  for (const auto& [name, part] : e.named) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*part));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

absl::StatusOr<Value> Interpreter::Called(const Expression& e) {
  ASSIGN_OR_RETURN(const Value value, Evaluate(*e.parts[0]));
  ASSIGN_OR_RETURN(const Arguments arguments, ArgumentsOf(e));
  ChargeCall(e, value, arguments);
  if (e.kind == Kind::kFilter) return ApplyFilter(e.text, value, arguments);
  if (e.kind == Kind::kTest) {
    ASSIGN_OR_RETURN(const bool passes, ApplyTest(e.text, value, arguments));
    return Value(passes);
  }
  if (value.call() != nullptr) return (*value.call())(arguments);
  const auto* undefined = value.undefined();
  return absl::InvalidArgumentError(
      undefined != nullptr ? absl::StrCat("the function '", undefined->name, "' is not known")
                           : absl::StrCat("a ", value.KindName(), " cannot be called"));
}

absl::StatusOr<Value> Interpreter::Logical(const Expression& e) {
  ASSIGN_OR_RETURN(Value value, Evaluate(*e.parts[0]));
  if (e.kind == Kind::kNot) return Value(!value.IsTrue());
  if (value.IsTrue() == (e.kind == Kind::kOr)) return value;
  return Evaluate(*e.parts[1]);
}

absl::StatusOr<Value> Interpreter::Compared(const Expression& e) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*e.parts[0]));
  for (size_t i = 0; i < e.operators.size(); ++i) {
    const std::string& sign = e.operators[i];
    ASSIGN_OR_RETURN(Value right, Evaluate(*e.parts[i + 1]));
    ChargeAll(right);
    bool holds = false;
    if (sign == "==" || sign == "!=") {
      holds = left.Equals(right) == (sign == "==");
    } else if (sign == "in" || sign == "not in") {
      ASSIGN_OR_RETURN(const bool inside, Contains(right, left));
      holds = inside == (sign == "in");
    } else {
      ASSIGN_OR_RETURN(const int order, Order(left, right));
      holds = (sign[0] == '<' && order < 0) || (sign[0] == '>' && order > 0) ||
              (sign.size() == 2 && order == 0);
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

absl::StatusOr<Value> Interpreter::Conditional(const Expression& e) {
  ASSIGN_OR_RETURN(const Value condition, Evaluate(*e.parts[1]));
  if (condition.IsTrue()) return Evaluate(*e.parts[0]);
  if (e.parts.size() > 2) return Evaluate(*e.parts[2]);
  return Missing("what an `if` without `else` leaves out");
}

}  // namespace espalier
