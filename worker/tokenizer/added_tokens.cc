#include "worker/tokenizer/added_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

constexpr size_t kContentBytesMax = 512;  // bounds the time for a text

absl::StatusOr<AddedToken> TokenFromJson(const nlohmann::json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("an added token is not an object");
  AddedToken token;
  ASSIGN_OR_RETURN(token.content, StringField(json, "content"));
  ASSIGN_OR_RETURN(const int64_t id, IntegerField(json, "id"));
  if (id >= int64_t{1} << 22) {
    return absl::InvalidArgumentError(absl::StrCat("the added token '", token.content.substr(0, 80),
                                                   "' has the id ", id,
                                                   "; at most 2^22 - 1 is "
                                                   "allowed"));
  }
  if (token.content.empty() || token.content.size() > kContentBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the added token ", id, " has ",
                                                   token.content.size(), " bytes; allowed: 1 to ",
                                                   kContentBytesMax));
  }
  token.id = static_cast<int32_t>(id);
  JsonKeys keys(json, "tokenizer.json", "added_tokens.");
  token.special = keys.Flag("special", false);
  token.single_word = keys.Flag("single_word", false);
  token.lstrip = keys.Flag("lstrip", false);
  token.rstrip = keys.Flag("rstrip", false);
  token.normalized = keys.Flag("normalized", !token.special);
  RETURN_IF_ERROR(keys.status());
  return token;
}

bool WithinWord(absl::string_view text, size_t begin, size_t end) {
  const auto word = [](CodePoint point) { return IsWord(point.value); };
  return (begin > 0 && word(LastCodePoint(text.substr(0, begin)))) ||
         (end < text.size() && word(FirstCodePoint(text.substr(end))));
}

// Not before `first`.
size_t WithoutSpacesBefore(absl::string_view text, size_t begin, size_t first) {
  while (begin > first) {
    const CodePoint point = LastCodePoint(text.substr(first, begin - first));
    if (!IsSpace(point.value)) break;
    begin -= point.bytes;
  }
  return begin;
}

size_t WithSpacesBehind(absl::string_view text, size_t end) {
  while (end < text.size()) {
    const CodePoint point = FirstCodePoint(text.substr(end));
    if (!IsSpace(point.value)) break;
    end += point.bytes;
  }
  return end;
}

}  // namespace

void AddedTokens::Tree::Add(absl::string_view content, int32_t token) {
  uint32_t node = 0;
  begins[static_cast<uint8_t>(content.front())] = true;
  for (const char c : content) {
    const auto [it, added] = next.try_emplace(uint64_t{node} << 8 | static_cast<uint8_t>(c),
                                              static_cast<uint32_t>(token_at.size()));
    if (added) token_at.push_back(-1);
    node = it->second;
  }
  token_at[node] = token;
}

AddedTokens::Tree::Found AddedTokens::Tree::Longest(absl::string_view text) const {
  Found found;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto it = next.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[i]));
    if (it == next.end()) break;
    node = it->second;
    if (token_at[node] >= 0) found = {token_at[node], i + 1};
  }
  return found;
}

absl::StatusOr<AddedTokens> AddedTokens::FromJson(const nlohmann::json& json,
                                                  const Normalizer& normalizer) {
  AddedTokens added;
  if (json.is_null()) return added;
  if (!json.is_array()) return absl::InvalidArgumentError("'added_tokens' is not an array");
  for (const nlohmann::json& one : json) {
    ASSIGN_OR_RETURN(AddedToken token, TokenFromJson(one));
    const auto index = static_cast<int32_t>(added.tokens_.size());
    if (token.normalized) {
      const auto content = normalizer.Apply(token.content, TextStart::kBegins);
      RETURN_IF_ERROR(content.status());
      if (!content->empty()) added.normalized_.Add(*content, index);
    } else {
      added.raw_.Add(token.content, index);
    }
    added.tokens_.push_back(std::move(token));
  }
  return added;
}

absl::Status AddedTokens::ForEachPart(absl::string_view text, Stage stage, bool special,
                                      Visit visit) const {
  const Tree& tree = stage == Stage::kRaw ? raw_ : normalized_;
  const auto visit_text = [&](size_t begin, size_t end) {
    return begin < end ? visit({text.substr(begin, end - begin), nullptr}) : absl::OkStatus();
  };
  size_t done = 0, spaces_end = 0;  // of white space that a token took along
  for (size_t at = 0; !tree.empty() && at < text.size();) {
    Tree::Found found;
    if (tree.begins[static_cast<uint8_t>(text[at])]) found = tree.Longest(text.substr(at));
    if (found.token < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(found.token)];
    size_t begin = at, end = at + found.bytes;
    at = end;
    if ((token.special && !special) || (token.single_word && WithinWord(text, begin, end)))
      continue;
    if (token.lstrip) begin = WithoutSpacesBefore(text, begin, std::min(done, begin));
    if (token.rstrip) end = spaces_end = WithSpacesBehind(text, std::max(end, spaces_end));
    RETURN_IF_ERROR(visit_text(done, begin));
    RETURN_IF_ERROR(visit({text.substr(begin, end - begin), &token}));
    done = end;  // the next token may lie in white space that this one took along
  }
  return visit_text(done, text.size());
}

}  // namespace espalier
