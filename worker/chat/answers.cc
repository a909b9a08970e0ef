// Which part of a rendered conversation the assistant wrote.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/chat/chat_template.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// The variables with the first `count` messages.
Json Before(const Json& variables, size_t count) {
  Json before = variables;
  Json& messages = before["messages"];
  messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(count), messages.end());
  return before;
}

bool IsAnswer(const Json& message) {
  const auto role = message.find("role");
  return role != message.end() && *role == "assistant";
}

// The length of the longest end of `a` that `b` begins with (Knuth, Morris and Pratt 1977).
size_t Overlap(absl::string_view a, absl::string_view b) {
  b = b.substr(0, a.size());
  std::vector<size_t> border(b.size());  // of each beginning of b: its longest end that begins it
  const auto extended = [&](size_t length, char next) {
    while (length > 0 && (length == b.size() || b[length] != next)) length = border[length - 1];
    return length < b.size() && b[length] == next ? length + 1 : 0;
  };
  for (size_t i = 1; i < b.size(); ++i) border[i] = extended(border[i - 1], b[i]);
  size_t length = 0;
  for (const char c : a) length = extended(length, c);
  return length;
}

size_t CommonEnd(absl::string_view a, absl::string_view b) {
  const auto [of_a, of_b] = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  return static_cast<size_t>(of_a - a.rbegin());
}

}  // namespace

absl::StatusOr<size_t> ChatTemplate::EndOfRewritten(const Json& variables, size_t at,
                                                    absl::string_view answer,
                                                    absl::string_view rest, absl::Time now) const {
  Json otherwise = Before(variables, at + 1);
  Json& content = otherwise["messages"][at]["content"];
  size_t mark = 0;  // how long what ends an answer is
  if (content.is_string() && content != "") {
    content = content.get<std::string>() + "\x7f";
    ASSIGN_OR_RETURN(const std::string other, Render(otherwise, {.now = now}));
    mark = CommonEnd(answer, other);
  }
  const size_t kept = Overlap(answer, rest);
  return kept > mark ? kept : 0;
}

absl::StatusOr<TextSpan> ChatTemplate::AnswerOf(const Json& variables, size_t at,
                                                absl::string_view text, absl::Time now) const {
  if (at == 0) {
    return absl::FailedPreconditionError(
        "the conversation begins with an answer of the assistant, to nothing");
  }
  ASSIGN_OR_RETURN(const std::string asked,
                   Render(Before(variables, at), {.add_generation_prompt = true, .now = now}));
  std::string answered(text);
  if (at + 1 < variables["messages"].size()) {
    ASSIGN_OR_RETURN(answered, Render(Before(variables, at + 1), {.now = now}));
  }
  if (absl::StartsWith(answered, asked) && absl::StartsWith(text, asked)) {
    if (absl::StartsWith(text, answered)) return TextSpan{asked.size(), answered.size()};
    const absl::string_view answer = absl::string_view(answered).substr(asked.size());
    ASSIGN_OR_RETURN(const size_t kept,
                     EndOfRewritten(variables, at, answer, text.substr(asked.size()), now));
    if (kept > 0) return TextSpan{asked.size(), asked.size() + kept};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the chat template writes message ", at + 1,
      " otherwise when others follow, or begins an answer otherwise than it ends up, so that the "
      "answers in its text cannot be told for certain; mark them in the template with "
      "{% generation %} and {% endgeneration %}, or let all tokens count"));
}

absl::StatusOr<MarkedText> ChatTemplate::RenderMarked(const Json& variables, absl::Time now) const {
  const auto messages = variables.find("messages");
  if (messages == variables.end() || !messages->is_array()) {
    return absl::InvalidArgumentError("there is no list of messages");
  }
  for (const Json& message : *messages) {
    if (!message.is_object()) return absl::InvalidArgumentError("a message is not an object");
  }
  ASSIGN_OR_RETURN(MarkedText marked, Write(variables, {.now = now}));
  ASSIGN_OR_RETURN(const Source* source, SourceFor(variables));
  if (source->marks_answers) return marked;
  for (size_t i = 0; i < messages->size(); ++i) {
    if (!IsAnswer((*messages)[i])) continue;
    ASSIGN_OR_RETURN(const TextSpan answer, AnswerOf(variables, i, marked.text, now));
    marked.answers.push_back(answer);
  }
  return marked;
}

}  // namespace espalier
