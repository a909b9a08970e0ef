#include "worker/chat/expression_parser.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

using Kind = Expression::Kind;
using WordKind = TemplateWord::Kind;

// Of binary operators, those that bind loosest first.
constexpr size_t kLevels = 4;
const std::array<std::vector<absl::string_view>, kLevels>& Operators() {
  static const auto& operators = *new std::array<std::vector<absl::string_view>, kLevels>{
      {{"+", "-"}, {"~"}, {"*", "//", "/", "%"}, {"**"}}};
  return operators;
}

}  // namespace

Expression::~Expression() {
  std::vector<ExpressionPointer> left;
  const auto take = [&left](Expression& from) {
    for (ExpressionPointer& part : from.parts) left.push_back(std::move(part));
    for (auto& [name, part] : from.named) left.push_back(std::move(part));
    from.parts.clear();
    from.named.clear();
  };
  take(*this);
  while (!left.empty()) {
    const ExpressionPointer one = std::move(left.back());
    left.pop_back();
    if (one != nullptr) take(*one);
  }
}

const TemplateWord& ExpressionParser::word(size_t ahead) const {
  return words_[std::min(at_ + ahead, words_.size() - 1)];
}

bool ExpressionParser::IsSign(absl::string_view sign, size_t ahead) const {
  return word(ahead).kind == WordKind::kSign && word(ahead).text == sign;
}

bool ExpressionParser::IsName(absl::string_view name, size_t ahead) const {
  return word(ahead).kind == WordKind::kName && word(ahead).text == name;
}

bool ExpressionParser::TakeSign(absl::string_view sign) {
  if (!IsSign(sign)) return false;
  ++at_;
  return true;
}

bool ExpressionParser::TakeName(absl::string_view name) {
  if (!IsName(name)) return false;
  ++at_;
  return true;
}

absl::Status ExpressionParser::Error(absl::string_view expected) const {
  return TemplateError(line_,
                       absl::StrCat(expected, " is expected, not ",
                                    word().kind == WordKind::kEnd
                                        ? "the end"
                                        : absl::StrCat("'", word().text.substr(0, 40), "'")));
}

absl::Status ExpressionParser::ExpectSign(absl::string_view sign) {
  return TakeSign(sign) ? absl::OkStatus() : Error(absl::StrCat("'", sign, "'"));
}

absl::Status ExpressionParser::ExpectEnd() const {
  return word().kind == WordKind::kEnd ? absl::OkStatus() : Error("the end");
}

absl::StatusOr<std::string> ExpressionParser::Name() {
  if (word().kind != WordKind::kName) return Error("a name");
  return words_[at_++].text;
}

ExpressionPointer ExpressionParser::Make(Kind kind, std::string text) const {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = line_;
  made->text = std::move(text);
  return made;
}

ExpressionPointer ExpressionParser::Make(Kind kind, std::string text, ExpressionPointer first,
                                         ExpressionPointer second) const {
  ExpressionPointer made = Make(kind, std::move(text));
  made->parts.push_back(std::move(first));
  if (second != nullptr) made->parts.push_back(std::move(second));
  return made;
}

ExpressionParser::Result ExpressionParser::AnyOrTuple() {
  ASSIGN_OR_RETURN(ExpressionPointer first, Any());
  if (!IsSign(",")) return first;
  ExpressionPointer list = Make(Kind::kList, "", std::move(first));
  while (TakeSign(",") && word().kind != WordKind::kEnd) {
    ASSIGN_OR_RETURN(ExpressionPointer next, Any());
    list->parts.push_back(std::move(next));
  }
  return list;
}

ExpressionParser::Result ExpressionParser::WithoutIf() { return Or(); }

ExpressionParser::Result ExpressionParser::Any() {
  const RecursionLimit::Level level(depth_);
  if (depth_.Exceeded()) return TemplateError(line_, "an expression is nested too deep");
  ASSIGN_OR_RETURN(ExpressionPointer value, Or());
  while (TakeName("if")) {
    ASSIGN_OR_RETURN(ExpressionPointer condition, Or());
    value = Make(Kind::kConditional, "", std::move(value), std::move(condition));
    if (!TakeName("else")) continue;
    ASSIGN_OR_RETURN(ExpressionPointer otherwise, Any());
    value->parts.push_back(std::move(otherwise));
  }
  return value;
}

ExpressionParser::Result ExpressionParser::Or() {
  ASSIGN_OR_RETURN(ExpressionPointer left, And());
  while (TakeName("or")) {
    ASSIGN_OR_RETURN(ExpressionPointer right, And());
    left = Make(Kind::kOr, "", std::move(left), std::move(right));
  }
  return left;
}

ExpressionParser::Result ExpressionParser::And() {
  ASSIGN_OR_RETURN(ExpressionPointer left, Not());
  while (TakeName("and")) {
    ASSIGN_OR_RETURN(ExpressionPointer right, Not());
    left = Make(Kind::kAnd, "", std::move(left), std::move(right));
  }
  return left;
}

ExpressionParser::Result ExpressionParser::Not() {
  const RecursionLimit::Level level(depth_);
  if (depth_.Exceeded()) return TemplateError(line_, "an expression is nested too deep");
  if (!TakeName("not")) return Compare();
  ASSIGN_OR_RETURN(ExpressionPointer value, Not());
  return Make(Kind::kNot, "", std::move(value));
}

ExpressionParser::Result ExpressionParser::Compare() {
  ASSIGN_OR_RETURN(ExpressionPointer left, Binary(0));
  ExpressionPointer chain;
  for (;;) {
    std::string found;
    for (const absl::string_view sign : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (found.empty() && TakeSign(sign)) found = std::string(sign);
    }
    if (found.empty() && TakeName("in")) found = "in";
    if (found.empty() && IsName("not") && IsName("in", 1)) {
      at_ += 2;
      found = "not in";
    }
    if (found.empty()) return chain != nullptr ? std::move(chain) : std::move(left);
    if (chain == nullptr) chain = Make(Kind::kCompare, "", std::move(left));
    ASSIGN_OR_RETURN(ExpressionPointer right, Binary(0));
    chain->parts.push_back(std::move(right));
    chain->operators.push_back(std::move(found));
  }
}

ExpressionParser::Result ExpressionParser::Binary(size_t level) {
  if (level == kLevels) return Unary(/*filters=*/true);
  ASSIGN_OR_RETURN(ExpressionPointer left, Binary(level + 1));
  for (;;) {
    std::string found;
    for (const absl::string_view sign : Operators()[level]) {
      if (found.empty() && TakeSign(sign)) found = std::string(sign);
    }
    if (found.empty()) return left;
    ASSIGN_OR_RETURN(ExpressionPointer right, Binary(level + 1));
    left = Make(Kind::kBinary, std::move(found), std::move(left), std::move(right));
  }
}

ExpressionParser::Result ExpressionParser::Unary(bool filters) {
  const RecursionLimit::Level level(depth_);
  if (depth_.Exceeded()) return TemplateError(line_, "an expression is nested too deep");
  ExpressionPointer value;
  if (IsSign("-") || IsSign("+")) {
    const bool negative = TakeSign("-");
    if (!negative) TakeSign("+");
    ASSIGN_OR_RETURN(value, Unary(/*filters=*/false));
    if (negative) value = Make(Kind::kNegative, "", std::move(value));
  } else {
    ASSIGN_OR_RETURN(value, Primary());
  }
  ASSIGN_OR_RETURN(value, Postfix(std::move(value)));
  if (!filters) return value;
  return Filters(std::move(value));
}

ExpressionParser::Result ExpressionParser::Postfix(ExpressionPointer value) {
  for (;;) {
    if (TakeSign(".")) {
      if (word().kind == WordKind::kInteger) {
        ASSIGN_OR_RETURN(ExpressionPointer index, WordValue());
        value = Make(Kind::kItem, "", std::move(value), std::move(index));
        continue;
      }
      ASSIGN_OR_RETURN(std::string name, Name());
      value = Make(Kind::kAttribute, std::move(name), std::move(value));
    } else if (TakeSign("[")) {
      ASSIGN_OR_RETURN(value, Subscript(std::move(value)));
    } else if (TakeSign("(")) {
      value = Make(Kind::kCall, "", std::move(value));
      RETURN_IF_ERROR(CallArguments(*value));
    } else {
      return value;
    }
  }
}

ExpressionParser::Result ExpressionParser::Filters(ExpressionPointer value) {
  for (;;) {
    if (TakeSign("|")) {
      ASSIGN_OR_RETURN(std::string name, Name());
      value = Make(Kind::kFilter, std::move(name), std::move(value));
      if (TakeSign("(")) RETURN_IF_ERROR(CallArguments(*value));
    } else if (TakeName("is")) {
      ASSIGN_OR_RETURN(value, Test(std::move(value)));
    } else if (TakeSign("(")) {
      value = Make(Kind::kCall, "", std::move(value));
      RETURN_IF_ERROR(CallArguments(*value));
    } else {
      return value;
    }
  }
}

ExpressionParser::Result ExpressionParser::Test(ExpressionPointer value) {
  const bool negated = TakeName("not");
  ASSIGN_OR_RETURN(std::string name, Name());
  ExpressionPointer test = Make(Kind::kTest, std::move(name), std::move(value));
  const WordKind next = word().kind;
  const bool goes_on = IsName("else") || IsName("or") || IsName("and") || IsName("is") ||
                       IsName("if") || IsName("not") || IsName("in");
  if (TakeSign("(")) {
    RETURN_IF_ERROR(CallArguments(*test));
  } else if ((next == WordKind::kName && !goes_on) || next == WordKind::kText ||
             next == WordKind::kInteger || next == WordKind::kReal || IsSign("[") || IsSign("{")) {
    ASSIGN_OR_RETURN(ExpressionPointer argument, Primary());
    ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    test->parts.push_back(std::move(argument));
  }
  return negated ? Make(Kind::kNot, "", std::move(test)) : std::move(test);
}

ExpressionParser::Result ExpressionParser::Subscript(ExpressionPointer value) {
  std::vector<ExpressionPointer> parts;
  bool slice = false;
  ExpressionPointer part;
  while (!IsSign("]")) {
    if (TakeSign(":")) {
      slice = true;
      parts.push_back(std::move(part));
      part = nullptr;
    } else if (part != nullptr || parts.size() > 2) {
      return Error("']'");
    } else {
      ASSIGN_OR_RETURN(part, Any());
    }
  }
  RETURN_IF_ERROR(ExpectSign("]"));
  if (!slice && part == nullptr) return Error("an index");
  if (!slice) return Make(Kind::kItem, "", std::move(value), std::move(part));
  parts.push_back(std::move(part));
  if (parts.size() > 3) return TemplateError(line_, "a slice has at most two ':'");
  parts.resize(3);
  ExpressionPointer made = Make(Kind::kSlice, "", std::move(value));
  for (ExpressionPointer& one : parts) made->parts.push_back(std::move(one));
  return made;
}

absl::Status ExpressionParser::CallArguments(Expression& call) {
  while (!TakeSign(")")) {
    if (word().kind == WordKind::kName && IsSign("=", 1)) {
      ASSIGN_OR_RETURN(std::string name, Name());
      RETURN_IF_ERROR(ExpectSign("="));
      ASSIGN_OR_RETURN(ExpressionPointer value, Any());
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      ASSIGN_OR_RETURN(ExpressionPointer value, Any());
      call.parts.push_back(std::move(value));
    }
    if (!TakeSign(",") && !IsSign(")")) return Error("',' or ')'");
  }
  return absl::OkStatus();
}

ExpressionParser::Result ExpressionParser::ListUntil(absl::string_view close) {
  ExpressionPointer list = Make(Kind::kList);
  bool comma = false;
  while (!TakeSign(close)) {
    ASSIGN_OR_RETURN(ExpressionPointer item, Any());
    list->parts.push_back(std::move(item));
    const bool taken = TakeSign(",");
    comma = comma || taken;
    if (!taken && !IsSign(close)) return Error(absl::StrCat("',' or '", close, "'"));
  }
  // (a) is a, (a,) is a list of it
  if (close == ")" && !comma && list->parts.size() == 1) return std::move(list->parts.front());
  return list;
}

ExpressionParser::Result ExpressionParser::DictLiteral() {
  ExpressionPointer dict = Make(Kind::kDict);
  while (!TakeSign("}")) {
    ASSIGN_OR_RETURN(ExpressionPointer key, Any());
    RETURN_IF_ERROR(ExpectSign(":"));
    ASSIGN_OR_RETURN(ExpressionPointer value, Any());
    dict->parts.push_back(std::move(key));
    dict->parts.push_back(std::move(value));
    if (!TakeSign(",") && !IsSign("}")) return Error("',' or '}'");
  }
  return dict;
}

ExpressionParser::Result ExpressionParser::WordValue() {
  const TemplateWord& found = words_[at_++];
  ExpressionPointer literal = Make(Kind::kLiteral);
  if (found.kind == WordKind::kInteger) literal->value = Value(found.integer);
  if (found.kind == WordKind::kReal) literal->value = Value(found.real);
  if (found.kind == WordKind::kText) {
    ASSIGN_OR_RETURN(literal->value, Value::Text(found.text));
  }
  return literal;
}

ExpressionParser::Result ExpressionParser::Primary() {
  if (TakeSign("(")) return ListUntil(")");
  if (TakeSign("[")) return ListUntil("]");
  if (TakeSign("{")) return DictLiteral();
  if (word().kind == WordKind::kSign || word().kind == WordKind::kEnd) return Error("a value");
  if (word().kind != WordKind::kName) return WordValue();
  ExpressionPointer literal = Make(Kind::kLiteral);
  const bool is_true = TakeName("true") || TakeName("True");
  if (is_true || TakeName("false") || TakeName("False")) {
    literal->value = Value(is_true);
    return literal;
  }
  if (TakeName("none") || TakeName("None")) return literal;
  ASSIGN_OR_RETURN(std::string name, Name());
  return Make(Kind::kName, std::move(name));
}

}  // namespace espalier
