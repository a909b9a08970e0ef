#include "worker/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/tokenizer/byte_letters.h"
#include "worker/tokenizer/pair_merges.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kBytes = 256, kVocabularyMax = int64_t{1} << 20;
constexpr size_t kWordBytesMax = 256;  // longer words are counted in parts
constexpr int64_t kReportEvery = 256;
// That of Qwen: as GPT-4's, but digits are words of their own, so that numbers are read alike.
constexpr char kExpression[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

OrderedJson ByteLevel() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", false}};
}

OrderedJson PreTokenizerJson() {
  const OrderedJson split = {{"type", "Split"},
                             {"pattern", {{"Regex", kExpression}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", OrderedJson::array({split, ByteLevel()})}};
}

// The vocabulary while it is learnt: special tokens, the letters of all bytes in their order, then
// what was merged.
struct Vocabulary {
  explicit Vocabulary(const std::vector<std::string>& special) : tokens(special) {
    std::vector<std::pair<std::string, size_t>> letters;
    for (size_t byte = 0; byte < kBytes; ++byte) {
      letters.emplace_back(ByteLetter(static_cast<uint8_t>(byte)), byte);
    }
    std::sort(letters.begin(), letters.end());
    for (const auto& [letter, byte] : letters) {
      id_of_byte[byte] = static_cast<int32_t>(tokens.size());
      tokens.push_back(letter);
    }
  }

  std::vector<std::string> tokens;
  std::array<int32_t, kBytes> id_of_byte{};
  OrderedJson merges = OrderedJson::array();
};

std::string TokenizerJsonOf(const Vocabulary& vocabulary, size_t special) {
  OrderedJson added = OrderedJson::array();
  OrderedJson::object_t vocab;  // pushed to, since looking keys up takes linear time
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    vocab.push_back({vocabulary.tokens[id], id});
    if (id >= special) continue;
    added.push_back({{"id", id},
                     {"content", vocabulary.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const OrderedJson json = {{"version", "1.0"},
                            {"truncation", nullptr},
                            {"padding", nullptr},
                            {"added_tokens", added},
                            {"normalizer", nullptr},
                            {"pre_tokenizer", PreTokenizerJson()},
                            {"post_processor", nullptr},
                            {"decoder", ByteLevel()},
                            {"model",
                             {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"ignore_merges", false},
                              {"vocab", vocab},
                              {"merges", vocabulary.merges}}}};
  return json.dump(1) + "\n";
}

absl::Status CheckOptions(const BpeTrainerOptions& options) {
  if (options.special_tokens.empty()) {
    return absl::InvalidArgumentError("no special token is given; one must end documents");
  }
  std::set<absl::string_view> seen;
  for (const std::string& token : options.special_tokens) {
    if (token.size() > 1 && token.size() <= 100 && IsUtf8(token) && seen.insert(token).second) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the special token '", WithReplacements(token.substr(0, 100)),
        "' is too short, too long, no UTF-8, or given twice; allowed: 2 to 100 bytes"));
  }
  const int64_t least = kBytes + static_cast<int64_t>(options.special_tokens.size());
  if (options.vocab_size < least || options.vocab_size > kVocabularyMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the size of the vocabulary must be ", least, " (all bytes and ",
                     options.special_tokens.size(), " special tokens) to ", kVocabularyMax,
                     ", got ", options.vocab_size));
  }
  if (options.min_count >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the least count of a pair must be 1 or more, got ", options.min_count));
}

}  // namespace

BpeTrainer::BpeTrainer(BpeTrainerOptions options, PreTokenizer pre_tokenizer)
    : options_(std::move(options)), pre_tokenizer_(std::move(pre_tokenizer)) {}

absl::StatusOr<BpeTrainer> BpeTrainer::Create(BpeTrainerOptions options) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::FromJson(PreTokenizerJson()));
  return BpeTrainer(std::move(options), std::move(pre_tokenizer));
}

absl::Status BpeTrainer::Add(absl::string_view text) {
  return pre_tokenizer_.ForEachWord(text, TextStart::kBegins, [&](absl::string_view word) {
    for (; word.size() > kWordBytesMax; word.remove_prefix(kWordBytesMax)) {
      ++words_[word.substr(0, kWordBytesMax)];
    }
    ++words_[word];
    return absl::OkStatus();
  });
}

absl::StatusOr<BpeTrainer::Trained> BpeTrainer::Train(
    const std::function<void(int64_t)>& progress) const {
  if (words_.empty()) return absl::InvalidArgumentError("there is no text to learn from");
  Vocabulary vocabulary(options_.special_tokens);
  std::vector<PairMerges::Word> words;
  words.reserve(words_.size());
  for (const auto& [word, count] : words_) {
    std::vector<int32_t> symbols;
    for (const char c : word) symbols.push_back(vocabulary.id_of_byte[static_cast<uint8_t>(c)]);
    words.push_back({std::move(symbols), count});
  }
  PairMerges pairs(std::move(words));
  // Two pairs may spell the same token, which then has one id.
  absl::flat_hash_map<std::string, int32_t> ids;
  for (const std::string& token : vocabulary.tokens) {
    ids.try_emplace(token, static_cast<int32_t>(ids.size()));
  }
  const auto size = [&] { return static_cast<int64_t>(vocabulary.tokens.size()); };
  while (size() < options_.vocab_size) {
    const auto pair = pairs.Commonest();
    if (!pair || pair->count < options_.min_count) break;
    const std::string& left = vocabulary.tokens[static_cast<size_t>(pair->left)];
    const std::string& right = vocabulary.tokens[static_cast<size_t>(pair->right)];
    vocabulary.merges.push_back({left, right});
    const auto [it, added] = ids.try_emplace(left + right, static_cast<int32_t>(size()));
    pairs.Merge(*pair, it->second);
    if (!added) continue;
    vocabulary.tokens.push_back(it->first);
    if (progress && size() % kReportEvery == 0) progress(size());
  }
  const OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                              {"eos_token", options_.special_tokens.front()},
                              {"clean_up_tokenization_spaces", false}};
  return Trained{TokenizerJsonOf(vocabulary, options_.special_tokens.size()), config.dump(1) + "\n",
                 size()};
}

}  // namespace espalier
