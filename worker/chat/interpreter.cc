#include "worker/chat/interpreter.h"

#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/chat/functions.h"
#include "worker/chat/lexer.h"
#include "worker/chat/text_functions.h"

namespace espalier {
namespace {

constexpr int64_t kStepsMax = 4'000'000;
constexpr int64_t kStepsOfRound = 20;  // of a loop
constexpr int64_t kBytesOfStep = 64, kItemsOfStep = 2, kCharactersOfStep = 16;

}  // namespace

Interpreter::Interpreter(const Value::Dict& variables) : frames_(1) {
  for (const auto& [name, value] : variables) frames_.front()[name] = value;
}

absl::StatusOr<std::string> Interpreter::Run(const std::vector<Statement>& statements) {
  ASSIGN_OR_RETURN(const Flow flow, Execute(statements));
  if (flow != Flow::kNext) return TemplateError(1, "break or continue outside of a loop");
  return std::move(out_);
}

absl::Status Interpreter::Step(int line) {
  if (++steps_ <= kStepsMax && !depth_.Exceeded()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("chat template, line ", line, ": it takes over ",
                                                   kStepsMax, " steps, or calls itself over ",
                                                   depth_.levels_max(), " levels deep"));
}

void Interpreter::Charge(const Value& value) {
  if (const Value::List* items = value.list()) {
    steps_ += static_cast<int64_t>(items->size()) / kItemsOfStep;
  } else if (const Value::Dict* items = value.dict()) {
    steps_ += static_cast<int64_t>(items->size()) / kItemsOfStep;
  } else {
    ChargeAll(value);
  }
}

void Interpreter::ChargeItems(const Value& value) {
  Charge(value);
  if (value.text() != nullptr) steps_ += value.bytes() / kCharactersOfStep;
}

void Interpreter::ChargeAll(const Value& value) { steps_ += value.bytes() / kBytesOfStep; }

void Interpreter::ChargeCall(const Expression& e, const Value& value, const Arguments& arguments) {
  // Filters that go through the items, that go into what these hold, and that do neither.
  static const auto& through = *new absl::flat_hash_set<absl::string_view>{
      "first",  "join",    "last",   "list",       "map",  "max", "min",   "rejectattr",
      "reject", "reverse", "select", "selectattr", "sort", "sum", "unique"};
  static const auto& into = *new absl::flat_hash_set<absl::string_view>{
      "capitalize", "indent", "join",  "lower",  "map",  "max",    "min",  "replace",
      "sort",       "string", "title", "tojson", "trim", "unique", "upper"};
  static const auto& neither =
      *new absl::flat_hash_set<absl::string_view>{"count", "d", "default", "length", "safe"};
  const bool filter = e.kind == Expression::Kind::kFilter;
  const bool test = e.kind == Expression::Kind::kTest;
  const int64_t before = steps_;
  const auto charge = [&](const Value& argument) {
    filter || test || value.is_method() ? ChargeAll(argument) : Charge(argument);
  };
  for (const Value& argument : arguments.values) charge(argument);
  for (const auto& [name, argument] : arguments.named) charge(argument);
  const int64_t of_arguments = steps_ - before;
  if (test) {
    if (!arguments.values.empty() || e.text == "lower" || e.text == "upper") ChargeAll(value);
  } else if (filter && neither.contains(e.text)) {
    if (value.text() != nullptr) Charge(value);
  } else if (filter && through.contains(e.text)) {
    ChargeItems(value);
    for (size_t i = 0; value.list() != nullptr && i < value.list()->size(); ++i) {
      const Value& item = (*value.list())[i];
      if (item.dict() != nullptr) Charge(item);
      steps_ += of_arguments;
    }
  } else {
    Charge(value);
  }
  if (filter && into.contains(e.text)) ChargeAll(value);
}

absl::Status Interpreter::Write(absl::string_view text) {
  steps_ += static_cast<int64_t>(text.size()) / kBytesOfStep;
  RETURN_IF_ERROR(CheckTextSize(out_.size() + text.size()));
  out_.append(text.data(), text.size());
  return absl::OkStatus();
}

const Value* Interpreter::Lookup(const std::string& name) const {
  for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
    if (const auto found = frame->find(name); found != frame->end()) return &found->second;
  }
  return nullptr;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const std::vector<Statement>& statements) {
  for (const Statement& statement : statements) {
    ASSIGN_OR_RETURN(const Flow flow, Execute(statement));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Statement& statement) {
  const RecursionLimit::Level level(depth_);
  RETURN_IF_ERROR(Step(statement.line));
  switch (statement.kind) {
    case Statement::Kind::kText:
      RETURN_IF_ERROR(Write(statement.text));
      return Flow::kNext;
    case Statement::Kind::kOutput: {
      ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
      RETURN_IF_ERROR(Write(value.ToText()));
      return Flow::kNext;
    }
    case Statement::Kind::kIf: {
      ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
      return Execute(value.IsTrue() ? statement.body : statement.otherwise);
    }
    case Statement::Kind::kFor:
      return ExecuteFor(statement);
    case Statement::Kind::kSet:
    case Statement::Kind::kSetBlock:
      RETURN_IF_ERROR(ExecuteSet(statement));
      return Flow::kNext;
    case Statement::Kind::kMacro:
      frames_.back()[statement.text] = Value(Value::Call(
          [this, &statement](const Arguments& given) { return CallMacro(statement, given); }));
      return Flow::kNext;
    case Statement::Kind::kGeneration: {
      const size_t begin = out_.size();
      ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body));
      if (captures_ == 0) generated_.push_back({begin, out_.size()});
      return flow;
    }
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

absl::Status Interpreter::Bind(const std::vector<std::string>& targets, const Value& value,
                               int line) {
  if (targets.size() == 1) {
    frames_.back()[targets.front()] = value;
    return absl::OkStatus();
  }
  const Value::List* items = value.list();
  if (items == nullptr || items->size() != targets.size()) {
    return TemplateError(
        line, absl::StrCat("a ", value.KindName(), " is given to ", targets.size(), " names"));
  }
  for (size_t i = 0; i < targets.size(); ++i) frames_.back()[targets[i]] = (*items)[i];
  return absl::OkStatus();
}

// What a loop goes through: the items that its condition lets through.
absl::StatusOr<Value::List> Interpreter::LoopItems(const Statement& statement) {
  ASSIGN_OR_RETURN(const Value through, Evaluate(*statement.expression));
  ChargeItems(through);
  ASSIGN_OR_RETURN(Value::List items, ItemsOf(through));
  if (statement.condition == nullptr) return items;
  Value::List kept;
  for (Value& item : items) {
    RETURN_IF_ERROR(Bind(statement.targets, item, statement.line));
    ASSIGN_OR_RETURN(const Value passes, Evaluate(*statement.condition));
    if (passes.IsTrue()) kept.push_back(std::move(item));
  }
  return kept;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteFor(const Statement& statement) {
  frames_.emplace_back();
  const absl::StatusOr<Flow> done = [&]() -> absl::StatusOr<Flow> {
    ASSIGN_OR_RETURN(const Value::List items, LoopItems(statement));
    if (items.empty()) {
      frames_.back().clear();
      return Execute(statement.otherwise);
    }
    const auto size = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < size; ++i) {
      steps_ += kStepsOfRound;
      RETURN_IF_ERROR(Step(statement.line));
      frames_.back().clear();
      const auto item = [&](int64_t at) {
        return at >= 0 && at < size ? items[static_cast<size_t>(at)]
                                    : Value(Value::Undefined{"there is no such item"});
      };
      Value::Dict loop{{"index", Value(i + 1)},
                       {"index0", Value(i)},
                       {"first", Value(i == 0)},
                       {"last", Value(i + 1 == size)},
                       {"length", Value(size)},
                       {"revindex", Value(size - i)},
                       {"revindex0", Value(size - i - 1)},
                       {"previtem", item(i - 1)},
                       {"nextitem", item(i + 1)}};
      ASSIGN_OR_RETURN(frames_.back()["loop"], Value::Of(std::move(loop)));
      RETURN_IF_ERROR(Bind(statement.targets, items[static_cast<size_t>(i)], statement.line));
      ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body));
      if (flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }();
  frames_.pop_back();
  return done;
}

absl::StatusOr<std::string> Interpreter::Captured(const std::vector<Statement>& statements) {
  std::string before = std::exchange(out_, "");
  ++captures_;
  const absl::StatusOr<Flow> flow = Execute(statements);
  --captures_;
  std::string written = std::exchange(out_, std::move(before));
  if (!flow.ok()) return flow.status();
  return written;
}

absl::Status Interpreter::ExecuteSet(const Statement& statement) {
  Value value;
  if (statement.kind == Statement::Kind::kSetBlock) {
    ASSIGN_OR_RETURN(std::string text, Captured(statement.body));
    ASSIGN_OR_RETURN(value, Value::Text(std::move(text)));
  } else {
    ASSIGN_OR_RETURN(value, Evaluate(*statement.expression));
  }
  if (statement.text.empty()) return Bind(statement.targets, value, statement.line);
  const Value* space = Lookup(statement.targets.front());
  if (space == nullptr) {
    return TemplateError(statement.line,
                         absl::StrCat("'", statement.targets.front(), "' is undefined"));
  }
  Charge(*space);
  return space->Assign(statement.text, std::move(value));
}

absl::StatusOr<Value> Interpreter::CallMacro(const Statement& macro, const Arguments& arguments) {
  const RecursionLimit::Level level(depth_);
  RETURN_IF_ERROR(Step(macro.line));
  Frame frame;
  const size_t without_default = macro.targets.size() - macro.defaults.size();
  for (size_t i = 0; i < macro.targets.size(); ++i) {
    const std::string& name = macro.targets[i];
    if (const Value* given = arguments.Find(i, name); given != nullptr) {
      frame[name] = *given;
    } else if (i >= without_default) {
      ASSIGN_OR_RETURN(frame[name], Evaluate(*macro.defaults[i - without_default]));
    } else {
      frame[name] = Value(Value::Undefined{name});
    }
  }
  // A macro sees what is set outside of all loops, and its own.
  std::vector<Frame> outer(std::make_move_iterator(frames_.begin() + 1),
                           std::make_move_iterator(frames_.end()));
  frames_.resize(1);
  frames_.push_back(std::move(frame));
  absl::StatusOr<std::string> written = Captured(macro.body);
  frames_.resize(1);
  frames_.insert(frames_.end(), std::make_move_iterator(outer.begin()),
                 std::make_move_iterator(outer.end()));
  if (!written.ok()) return written.status();
  return Value::Text(*std::move(written));
}

}  // namespace espalier
