#include "worker/tokenizer/gguf_vocabulary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr char kMark[] = "▁";  // stands for a space

// The steps that llama.cpp has expressions for, with its name of them.
struct KnownSteps {
  absl::string_view steps;  // see StepsOf
  bool ignore_merges;
  absl::string_view name;
  absl::string_view note = "";
};
constexpr char kGpt4[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kO200k[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekken[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kNearly =
    "llama.cpp knows small letters from large ones in English alone, where it cuts words by them";
constexpr KnownSteps kKnownSteps[] = {
    {"gpt2", false, "gpt-2"},          {"digits, gpt2", false, "smollm"},
    {kGpt4, true, "llama-bpe"},        {kGpt4, false, "dbrx"},
    {kQwen2, false, "qwen2"},          {kO200k, false, "gpt-4o", kNearly},
    {kTekken, true, "tekken", kNearly}};

// What SentencePiece does with spaces: normalizer and pre-tokenizer.
struct KnownSpaces {
  absl::string_view steps;
  bool mark_before;  // a text
  absl::string_view note = "";
};
constexpr absl::string_view kWhereNone =
    "this tokenizer puts a space before texts that begin with none, llama.cpp before all";
constexpr absl::string_view kBehindTokens =
    "this tokenizer puts a space before texts that begin with none, llama.cpp before all, and also "
    "behind special tokens";
constexpr KnownSpaces kKnownSpaces[] = {
    {"prepend, replace", true},
    {"replace", false},
    {"replace, split at spaces", false},  // of which there are none left
    {"metaspace always", true, kWhereNone},
    {"metaspace first", true, kBehindTokens},
    {"metaspace never", false}};

struct Token {
  std::string text;
  GgufTokenType type = GgufTokenType::kUnused;
};

// null for a key that is absent, or of what is no object.
const json& Part(const json& object, const char* key) {
  static const json& null = *new json();
  const auto it = object.is_object() ? object.find(key) : object.end();
  return it == object.end() ? null : *it;
}

bool Flag(const json& object, const char* key, bool absent) {
  const json& value = Part(object, key);
  return value.is_boolean() ? value.get<bool>() : absent;
}

std::string Text(const json& object, const char* key) {
  const json& value = Part(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

// A token as tokenizer_config.json names it: a text, or an object with its content.
std::optional<int32_t> NamedToken(const Tokenizer& tokenizer, const json& config, const char* key) {
  const json& value = Part(config, key);
  const std::string name = value.is_object() ? Text(value, "content") : Text(config, key);
  return name.empty() ? std::nullopt : tokenizer.IdOf(name);
}

std::string MetaspaceSteps(const json& one) {
  std::string scheme = Text(one, "prepend_scheme");
  if (scheme.empty()) scheme = Flag(one, "add_prefix_space", true) ? "always" : "never";
  return absl::StrCat("metaspace ", scheme);
}

// Steps of a normalizer or pre-tokenizer in few words: what is not known is named by its type.
std::string StepsOf(const json& one) {
  const std::string type = Text(one, "type");
  if (type == "Sequence") {
    std::vector<std::string> steps;
    for (const char* list : {"normalizers", "pretokenizers"}) {
      for (const json& part : Part(one, list)) {
        if (std::string words = StepsOf(part); !words.empty()) steps.push_back(std::move(words));
      }
    }
    return absl::StrJoin(steps, ", ");
  }
  const json& pattern = Part(one, "pattern");
  if (type == "ByteLevel") {
    if (Flag(one, "add_prefix_space", true)) return "ByteLevel with add_prefix_space";
    return Flag(one, "use_regex", true) ? "gpt2" : "";
  }
  if (type == "Digits" && Flag(one, "individual_digits", false)) return "digits";
  if (type == "Split" && Text(pattern, "String") == " ") return "split at spaces";
  if (type == "Split" && Text(one, "behavior") == "Isolated" && !Flag(one, "invert", false)) {
    return Text(pattern, "Regex");
  }
  if (type == "Prepend" && Text(one, "prepend") == kMark) return "prepend";
  if (type == "Replace" && Text(pattern, "String") == " " && Text(one, "content") == kMark) {
    return "replace";
  }
  if (type == "Metaspace" && Text(one, "replacement") == kMark) return MetaspaceSteps(one);
  return type;
}

absl::Status Unknown(absl::string_view part, absl::string_view steps) {
  return absl::UnimplementedError(absl::StrCat(
      "llama.cpp is not known to cut texts as this tokenizer does (", part, ": ",
      steps.empty() ? "none" : steps.substr(0, 120),
      "); a GGUF file is made of byte-level BPE with the expressions of GPT-2, Llama 3, Qwen 2 and "
      "SmolLM2, and of SentencePiece's BPE; export a folder instead, without --format gguf"));
}

using Merge = std::pair<std::string, std::string>;

std::vector<Merge> MergesOf(const json& model) {
  std::vector<Merge> merges;
  for (const json& merge : Part(model, "merges")) {
    if (merge.is_array()) {
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      const auto& both = merge.get_ref<const std::string&>();
      const size_t space = both.find(' ');
      merges.emplace_back(both.substr(0, space), both.substr(space + 1));
    }
  }
  return merges;
}

// Every id of the model with its token; ids without one get a name of their own.
absl::StatusOr<std::vector<Token>> TokensOf(const Tokenizer& tokenizer, const json& whole,
                                            int64_t vocab_size, bool sentencepiece) {
  if (tokenizer.vocab_size() > vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer has ", tokenizer.vocab_size(),
                                                   " ids, the model ", vocab_size,
                                                   "; a model has at least as many"));
  }
  std::vector<Token> tokens(static_cast<size_t>(vocab_size));
  const json& model = Part(whole, "model");
  const std::string unknown = Text(model, "unk_token");
  for (const auto& [text, id] : Part(model, "vocab").items()) {
    const bool byte = tokenizer.KindOf(id.get<int32_t>()) == TokenKind::kByteFallback;
    tokens[id.get<size_t>()] = {text, byte ? GgufTokenType::kByte : GgufTokenType::kNormal};
  }
  for (const json& added : Part(whole, "added_tokens")) {
    const std::string text = Text(added, "content");
    tokens[Part(added, "id").get<size_t>()] =
        Flag(added, "special", false)
            ? Token{text, GgufTokenType::kControl}
            : Token{sentencepiece ? absl::StrReplaceAll(text, {{kMark, " "}}) : text,
                    GgufTokenType::kUserDefined};
  }
  absl::flat_hash_set<absl::string_view> seen;
  for (size_t id = 0; id < tokens.size(); ++id) {
    Token& token = tokens[id];
    if (token.type == GgufTokenType::kUnused) token.text = absl::StrCat("[PAD", id, "]");
    if (sentencepiece && token.text == unknown) token.type = GgufTokenType::kUnknown;
    if (seen.insert(token.text).second) continue;
    return absl::UnimplementedError(absl::StrCat("two ids of the tokenizer have the token '",
                                                 token.text.substr(0, 80),
                                                 "', which no GGUF file can have"));
  }
  return tokens;
}

absl::Status NoScores(absl::string_view token) {
  return absl::UnimplementedError(
      absl::StrCat("no scores of tokens, by which llama.cpp merges those of SentencePiece, stand "
                   "for the merges of this tokenizer: not all that make '",
                   token.substr(0, 80), "' are there, one after the other"));
}

// llama.cpp makes the token of the highest score of any two neighbours that make one. That is what
// merges say where those of a token follow each other, and are all that could make it.
absl::StatusOr<std::vector<float>> ScoresOf(const std::vector<Token>& tokens,
                                            const std::vector<Merge>& merges) {
  absl::flat_hash_map<std::string, float> scores;
  absl::flat_hash_set<Merge> listed;
  std::string last;
  for (const Merge& merge : merges) {
    std::string made = merge.first + merge.second;
    listed.insert(merge);
    if (made == last) continue;
    if (!scores.emplace(made, -1.0F - static_cast<float>(scores.size())).second) {
      return NoScores(made);
    }
    last = std::move(made);
  }
  absl::flat_hash_set<absl::string_view> parts;  // what texts can be made of
  for (const Token& token : tokens) {
    const bool character = FirstCodePoint(token.text).bytes == token.text.size();
    if (token.type == GgufTokenType::kNormal && (character || scores.contains(token.text))) {
      parts.insert(token.text);
    }
  }
  std::vector<float> result;
  for (const Token& token : tokens) {
    const auto it = scores.find(token.text);
    result.push_back(it == scores.end() ? 0.0F : it->second);
    if (token.type != GgufTokenType::kNormal) continue;
    const absl::string_view text = token.text;
    for (size_t cut = FirstCodePoint(text).bytes; cut < text.size();
         cut += FirstCodePoint(text.substr(cut)).bytes) {
      const absl::string_view left = text.substr(0, cut), right = text.substr(cut);
      if (!parts.contains(left) || !parts.contains(right)) continue;
      if (!listed.contains(Merge(left, right))) return NoScores(text);
    }
  }
  return result;
}

absl::Status AddSentencePiece(const json& whole, const std::vector<Token>& tokens,
                              GgufVocabulary& made) {
  const std::string normalizer = StepsOf(Part(whole, "normalizer"));
  const std::string pre_tokenizer = StepsOf(Part(whole, "pre_tokenizer"));
  const std::string steps = absl::StrCat(
      normalizer, normalizer.empty() || pre_tokenizer.empty() ? "" : ", ", pre_tokenizer);
  const KnownSpaces* const known =
      std::find_if(std::begin(kKnownSpaces), std::end(kKnownSpaces),
                   [&](const KnownSpaces& one) { return one.steps == steps; });
  if (known == std::end(kKnownSpaces)) return Unknown("spaces", steps);
  if (!known->note.empty()) made.notes.emplace_back(known->note);
  const bool split = Flag(Part(whole, "pre_tokenizer"), "split", true) &&
                     absl::StartsWith(pre_tokenizer, "metaspace");
  int64_t bytes = 0;
  for (const Token& token : tokens) {
    bytes += token.type == GgufTokenType::kByte;
    if (split && token.type == GgufTokenType::kNormal &&
        absl::string_view(token.text).substr(1).find(kMark) != absl::string_view::npos) {
      return Unknown("spaces", absl::StrCat(steps, ", words apart, and the token ", token.text));
    }
  }
  if (bytes != 256) return Unknown("tokens of single bytes", absl::StrCat(bytes, " of 256"));
  ASSIGN_OR_RETURN(std::vector<float> scores, ScoresOf(tokens, MergesOf(Part(whole, "model"))));
  AddFact(made.facts, "tokenizer.ggml.scores", std::move(scores));
  AddFact(made.facts, "tokenizer.ggml.add_space_prefix", known->mark_before);
  return absl::OkStatus();
}

absl::Status AddByteLevel(const json& whole, GgufVocabulary& made) {
  const json& model = Part(whole, "model");
  const std::string steps = StepsOf(Part(whole, "pre_tokenizer"));
  const bool ignore_merges = Flag(model, "ignore_merges", false);
  const KnownSteps* const known =
      std::find_if(std::begin(kKnownSteps), std::end(kKnownSteps), [&](const KnownSteps& one) {
        return one.steps == steps && one.ignore_merges == ignore_merges;
      });
  if (known == std::end(kKnownSteps)) {
    return Unknown(ignore_merges ? "pre_tokenizer, with ignore_merges" : "pre_tokenizer", steps);
  }
  if (!known->note.empty()) made.notes.emplace_back(known->note);
  const std::string normalizer = StepsOf(Part(whole, "normalizer"));
  if (normalizer == "NFC") {
    made.notes.push_back("this tokenizer composes characters first (NFC), llama.cpp does not");
  } else if (!normalizer.empty()) {
    return Unknown("normalizer", normalizer);
  }
  std::vector<std::string> merges;
  for (const Merge& merge : MergesOf(model)) {
    merges.push_back(absl::StrCat(merge.first, " ", merge.second));
  }
  AddFact(made.facts, "tokenizer.ggml.pre", std::string(known->name));
  AddFact(made.facts, "tokenizer.ggml.merges", std::move(merges));
  return absl::OkStatus();
}

// Ids around every text.
absl::Status AddFrame(const Tokenizer& tokenizer, std::optional<int64_t> begin, GgufFacts& facts) {
  ASSIGN_OR_RETURN(const TextFrame frame, tokenizer.Frame());
  const auto& [before, behind] = frame;
  const int32_t end = tokenizer.end_of_text();
  if (before.size() > 1 || behind.size() > 1 || (!behind.empty() && behind[0] != end)) {
    return absl::UnimplementedError(absl::StrCat(
        "the tokenizer puts [", absl::StrJoin(before, ", "), "] before and [",
        absl::StrJoin(behind, ", "), "] behind a text; llama.cpp puts at most one id before it, ",
        "and behind it the one that ends texts, ", end));
  }
  const int64_t first = before.empty() ? begin.value_or(end) : before[0];
  AddFact(facts, "tokenizer.ggml.bos_token_id", static_cast<uint32_t>(first));
  AddFact(facts, "tokenizer.ggml.eos_token_id", static_cast<uint32_t>(end));
  AddFact(facts, "tokenizer.ggml.add_bos_token", !before.empty());
  AddFact(facts, "tokenizer.ggml.add_eos_token", !behind.empty());
  return absl::OkStatus();
}

// The default one, and others by their names.
void AddChatTemplates(const json& config, GgufFacts& facts) {
  constexpr char kKey[] = "tokenizer.chat_template";
  const json& templates = Part(config, "chat_template");
  if (templates.is_string()) AddFact(facts, kKey, templates.get<std::string>());
  if (!templates.is_array()) return;
  std::vector<std::string> names;
  for (const json& one : templates) {
    const std::string name = Text(one, "name"), text = Text(one, "template");
    if (name.empty() || text.empty()) continue;
    const bool is_default = name == "default";
    AddFact(facts, is_default ? kKey : absl::StrCat(kKey, ".", name), text);
    if (!is_default) names.push_back(name);
  }
  if (!names.empty()) AddFact(facts, "tokenizer.chat_templates", std::move(names));
}

void NoteStrips(const json& whole, std::vector<std::string>& notes) {
  for (const json& added : Part(whole, "added_tokens")) {
    for (const char* option : {"lstrip", "rstrip", "single_word"}) {
      if (!Flag(added, option, false)) continue;
      notes.push_back(absl::StrCat("llama.cpp does not know the option ", option, " of the token '",
                                   Text(added, "content"), "'"));
    }
  }
}

}  // namespace

absl::StatusOr<GgufVocabulary> MakeGgufVocabulary(const Tokenizer& tokenizer, int64_t vocab_size,
                                                  std::optional<int64_t> begin) {
  ASSIGN_OR_RETURN(const json whole, ParseJsonObject(tokenizer.Json()));
  const json config = json::parse(tokenizer.ConfigJson(), nullptr, /*allow_exceptions=*/false);
  const bool sentencepiece = Flag(Part(whole, "model"), "byte_fallback", false);
  ASSIGN_OR_RETURN(const std::vector<Token> tokens,
                   TokensOf(tokenizer, whole, vocab_size, sentencepiece));
  GgufVocabulary made;
  std::vector<std::string> texts;
  std::vector<int32_t> types;
  for (const Token& token : tokens) {
    texts.push_back(token.text);
    types.push_back(static_cast<int32_t>(token.type));
  }
  AddFact(made.facts, "tokenizer.ggml.model", std::string(sentencepiece ? "llama" : "gpt2"));
  AddFact(made.facts, "tokenizer.ggml.tokens", std::move(texts));
  AddFact(made.facts, "tokenizer.ggml.token_type", std::move(types));
  RETURN_IF_ERROR(sentencepiece ? AddSentencePiece(whole, tokens, made)
                                : AddByteLevel(whole, made));
  if (const auto named = NamedToken(tokenizer, config, "bos_token")) begin = *named;
  RETURN_IF_ERROR(AddFrame(tokenizer, begin, made.facts));
  const std::pair<const char*, std::optional<int32_t>> others[] = {
      {"tokenizer.ggml.unknown_token_id", NamedToken(tokenizer, config, "unk_token")},
      {"tokenizer.ggml.padding_token_id", NamedToken(tokenizer, config, "pad_token")}};
  for (const auto& [key, id] : others) {
    if (id) AddFact(made.facts, key, static_cast<uint32_t>(*id));
  }
  AddChatTemplates(config, made.facts);
  NoteStrips(whole, made.notes);
  return made;
}

GgufVocabulary NoGgufVocabulary() {
  GgufVocabulary made;
  AddFact(made.facts, "tokenizer.ggml.model", std::string("none"));
  made.notes.push_back(
      "there is no tokenizer beside the model: llama.cpp takes and gives ids alone");
  return made;
}

}  // namespace espalier
