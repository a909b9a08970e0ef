#include "worker/chat/parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/chat/expression_parser.h"
#include "worker/chat/lexer.h"
#include "worker/chat/recursion.h"

namespace espalier {
namespace {

constexpr size_t kSourceBytesMax = size_t{1} << 20;
using Kind = Statement::Kind;
using Statements = std::vector<Statement>;

class Parser {
 public:
  explicit Parser(std::vector<TemplatePart> parts) : parts_(std::move(parts)) {}

  absl::StatusOr<Statements> Run() {
    ASSIGN_OR_RETURN(Statements all, Until({}));
    return all;
  }

 private:
  // Statements up to one of these, whose name is in end_ then; with no names up to the end.
  absl::StatusOr<Statements> Until(const std::vector<absl::string_view>& ends) {
    const RecursionLimit::Level level(depth_);
    if (depth_.Exceeded()) return TemplateError(Line(), "statements are nested too deep");
    Statements found;
    const int begin = Line();
    for (; at_ < parts_.size();) {
      TemplatePart& part = parts_[at_++];
      if (part.kind == TemplatePart::Kind::kText) {
        Statement& text = found.emplace_back();
        text.text = std::move(part.text);
        continue;
      }
      ASSIGN_OR_RETURN(std::vector<TemplateWord> words, WordsOf(part));
      ExpressionParser rest(std::move(words), part.line);
      if (part.kind == TemplatePart::Kind::kOutput) {
        Statement& output = found.emplace_back();
        output.kind = Kind::kOutput;
        output.line = part.line;
        ASSIGN_OR_RETURN(output.expression, rest.AnyOrTuple());
        RETURN_IF_ERROR(rest.ExpectEnd());
        continue;
      }
      ASSIGN_OR_RETURN(const std::string name, rest.Name());
      if (std::find(ends.begin(), ends.end(), name) != ends.end()) {
        end_ = name;
        end_at_ = at_ - 1;
        return found;
      }
      ASSIGN_OR_RETURN(Statement statement, One(name, rest, part.line));
      found.push_back(std::move(statement));
    }
    if (!ends.empty()) return TemplateError(begin, absl::StrCat("there is no ", ends.back()));
    return found;
  }

  int Line() const { return parts_.empty() ? 1 : parts_[std::min(at_, parts_.size() - 1)].line; }

  absl::StatusOr<Statement> One(const std::string& name, ExpressionParser& rest, int line) {
    if (name == "if") return If(rest, line);
    if (name == "for") return For(rest, line);
    if (name == "set") return Set(rest, line);
    if (name == "macro") return Macro(rest, line);
    Statement statement;
    statement.line = line;
    if (name == "generation") {
      statement.kind = Kind::kGeneration;
      RETURN_IF_ERROR(rest.ExpectEnd());
      ASSIGN_OR_RETURN(statement.body, Until({"endgeneration"}));
      return statement;
    }
    if (name == "break" || name == "continue") {
      statement.kind = name == "break" ? Kind::kBreak : Kind::kContinue;
      RETURN_IF_ERROR(rest.ExpectEnd());
      return statement;
    }
    return TemplateError(line, absl::StrCat("the statement '", name.substr(0, 40),
                                            "' is not known; allowed: if, for, set, macro, break, "
                                            "continue, generation, raw"));
  }

  absl::StatusOr<Statement> If(ExpressionParser& rest, int line) {
    Statement statement;
    statement.kind = Kind::kIf;
    statement.line = line;
    ASSIGN_OR_RETURN(statement.expression, rest.AnyOrTuple());
    RETURN_IF_ERROR(rest.ExpectEnd());
    ASSIGN_OR_RETURN(statement.body, Until({"elif", "else", "endif"}));
    if (end_ == "else") {
      ASSIGN_OR_RETURN(statement.otherwise, Until({"endif"}));
    } else if (end_ == "elif") {
      const int elif_line = parts_[end_at_].line;
      ASSIGN_OR_RETURN(std::vector<TemplateWord> words, WordsOf(parts_[end_at_]));
      ExpressionParser after(std::move(words), elif_line);
      after.TakeName("elif");
      const RecursionLimit::Level level(depth_);
      ASSIGN_OR_RETURN(Statement other, If(after, elif_line));
      statement.otherwise.push_back(std::move(other));
    }
    return statement;
  }

  absl::StatusOr<Statement> For(ExpressionParser& rest, int line) {
    Statement statement;
    statement.kind = Kind::kFor;
    statement.line = line;
    RETURN_IF_ERROR(Targets(rest, statement.targets));
    if (!rest.TakeName("in")) return rest.Error("'in'");
    ASSIGN_OR_RETURN(statement.expression, rest.WithoutIf());
    if (rest.TakeName("if")) {
      ASSIGN_OR_RETURN(statement.condition, rest.Any());
    }
    RETURN_IF_ERROR(rest.ExpectEnd());
    ASSIGN_OR_RETURN(statement.body, Until({"else", "endfor"}));
    if (end_ != "else") return statement;
    ASSIGN_OR_RETURN(statement.otherwise, Until({"endfor"}));
    return statement;
  }

  // a, (a, b), a, b
  static absl::Status Targets(ExpressionParser& rest, std::vector<std::string>& targets) {
    const bool parenthesis = rest.TakeSign("(");
    do {
      ASSIGN_OR_RETURN(std::string name, rest.Name());
      targets.push_back(std::move(name));
    } while (rest.TakeSign(","));
    return parenthesis ? rest.ExpectSign(")") : absl::OkStatus();
  }

  absl::StatusOr<Statement> Set(ExpressionParser& rest, int line) {
    Statement statement;
    statement.kind = Kind::kSet;
    statement.line = line;
    RETURN_IF_ERROR(Targets(rest, statement.targets));
    if (rest.TakeSign(".")) {
      ASSIGN_OR_RETURN(statement.text, rest.Name());
    }
    if (rest.TakeSign("=")) {
      ASSIGN_OR_RETURN(statement.expression, rest.AnyOrTuple());
      RETURN_IF_ERROR(rest.ExpectEnd());
      return statement;
    }
    RETURN_IF_ERROR(rest.ExpectEnd());
    statement.kind = Kind::kSetBlock;
    ASSIGN_OR_RETURN(statement.body, Until({"endset"}));
    return statement;
  }

  absl::StatusOr<Statement> Macro(ExpressionParser& rest, int line) {
    Statement statement;
    statement.kind = Kind::kMacro;
    statement.line = line;
    ASSIGN_OR_RETURN(statement.text, rest.Name());
    RETURN_IF_ERROR(rest.ExpectSign("("));
    while (!rest.TakeSign(")")) {
      ASSIGN_OR_RETURN(std::string name, rest.Name());
      statement.targets.push_back(std::move(name));
      if (rest.TakeSign("=")) {
        ASSIGN_OR_RETURN(ExpressionPointer value, rest.Any());
        statement.defaults.push_back(std::move(value));
      } else if (!statement.defaults.empty()) {
        return TemplateError(line, "a parameter without a default follows one with it");
      }
      rest.TakeSign(",");
    }
    RETURN_IF_ERROR(rest.ExpectEnd());
    ASSIGN_OR_RETURN(statement.body, Until({"endmacro"}));
    return statement;
  }

  std::vector<TemplatePart> parts_;
  size_t at_ = 0;
  std::string end_;    // name of the statement that ended the last Until
  size_t end_at_ = 0;  // and its place
  RecursionLimit depth_{50, kStackOfTemplates};
};

}  // namespace

absl::StatusOr<std::vector<Statement>> ParseTemplate(absl::string_view source) {
  if (source.size() > kSourceBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the chat template has ", source.size(),
                                                   " bytes; at most ", kSourceBytesMax,
                                                   " are allowed"));
  }
  ASSIGN_OR_RETURN(std::vector<TemplatePart> parts, SplitTemplate(source));
  return Parser(std::move(parts)).Run();
}

}  // namespace espalier
