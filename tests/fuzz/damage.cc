#include "tests/fuzz/damage.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/worker/support/mutations.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDepthMax = 64;       // of what is parsed here
constexpr size_t kFirstItems = 12;  // large lists are alike: their first items do
constexpr char kNest[] = "\"@nest@\"";
constexpr uint64_t kNestMost = 30000;  // levels: 60 KB

// A value somewhere in the tree.
Json& Somewhere(Json& root, std::mt19937_64& random) {
  Json* at = &root;
  while (at->is_structured() && !at->empty() && random() % 8 != 0) {
    auto it = at->begin();
    std::advance(it, static_cast<ptrdiff_t>(random() % std::min(at->size(), kFirstItems)));
    at = &*it;
  }
  return *at;
}

Json OddValue(FuzzWords words, std::mt19937_64& random) {
  const Json values[] = {nullptr,
                         true,
                         false,
                         -1,
                         0,
                         1,
                         3,
                         0.5,
                         1e300,
                         -1e-300,
                         4294967296,
                         int64_t{1} << 53,
                         INT64_MAX,
                         INT64_MIN,
                         uint64_t{1} << 63,
                         UINT64_MAX,
                         "",
                         "a",
                         std::string(1, '\0'),
                         std::string(600, 'x'),
                         Json::array(),
                         Json::object(),
                         "@nest@"};
  if (!words.empty() && random() % 2 == 0) return std::string(words[random() % words.size()]);
  return values[random() % std::size(values)];
}

void Change(Json& root, FuzzWords words, std::mt19937_64& random) {
  Json& at = Somewhere(root, random);
  switch (random() % 6) {
    case 0: {
      Json other = Somewhere(root, random);
      at = std::move(other);
      break;
    }
    case 1:  // one item less
      if (at.is_structured() && !at.empty()) {
        auto it = at.begin();
        std::advance(it, static_cast<ptrdiff_t>(random() % at.size()));
        at.erase(it);
      }
      break;
    case 2: {  // one more
      Json other = Somewhere(root, random);
      if (at.is_array()) at.push_back(std::move(other));
      if (at.is_object() && !words.empty()) {
        at[std::string(words[random() % words.size()])] = std::move(other);
      }
      break;
    }
    case 3:
      if (at.is_string()) at = at.get<std::string>() + "a";
      if (at.is_number_integer()) at = at.get<int64_t>() / 2 + static_cast<int64_t>(random() % 5);
      break;
    default:
      at = OddValue(words, random);
  }
}

}  // namespace

std::string DamagedJson(const std::string& text, FuzzWords words, std::mt19937_64& random) {
  const Json::parser_callback_t shallow = [](int depth, Json::parse_event_t, Json&) {
    return depth < kDepthMax;
  };
  Json root = Json::parse(text, shallow, /*allow_exceptions=*/false);
  if (root.is_discarded()) return DamagedText(text, words, random);
  for (uint64_t left = random() % 3 + 1; left > 0; --left) Change(root, words, random);
  const uint64_t levels = random() % kNestMost;
  return absl::StrReplaceAll(
      root.dump(-1, ' ', false, Json::error_handler_t::replace),
      {{kNest, absl::StrCat(std::string(levels, '['), std::string(levels, ']'))}});
}

std::string DamagedText(const std::string& text, FuzzWords words, std::mt19937_64& random) {
  std::string damaged = Mutated(text, words, random);
  if (random() % 16 == 0) {
    const absl::string_view word = words[random() % words.size()];
    std::string many;
    for (uint64_t left = random() % 2000; left > 0; --left) absl::StrAppend(&many, word);
    damaged.insert(damaged.empty() ? 0 : random() % damaged.size(), many);
  }
  return damaged;
}

std::string DamagedSafetensors(const std::string& file, std::mt19937_64& random) {
  static constexpr absl::string_view kWords[] = {
      "F32", "BF16", "U8", "dtype", "shape", "data_offsets", "__metadata__", "format", "pt"};
  uint64_t length = 0;
  if (file.size() < sizeof(length)) return file + std::string(sizeof(length), '\0');
  std::memcpy(&length, file.data(), sizeof(length));
  length = std::min<uint64_t>(length, file.size() - sizeof(length));
  const std::string header = DamagedJson(file.substr(sizeof(length), length), kWords, random);
  std::string data = file.substr(sizeof(length) + length);
  if (random() % 4 == 0) data.resize(random() % (data.size() + 64));
  length = header.size();
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&length), sizeof(length)),
                      header, data);
}

}  // namespace espalier
