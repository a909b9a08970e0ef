#include "common/base/utf8.h"

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

bool InRange(absl::string_view text, size_t i, int low, int high) {
  if (i >= text.size()) return false;
  const auto byte = static_cast<unsigned char>(text[i]);
  return byte >= low && byte <= high;
}

// Length of the well-formed sequence at `i`; 0: none.
size_t SequenceLength(absl::string_view text, size_t i) {
  const auto lead = static_cast<unsigned char>(text[i]);
  const auto continues = [&](size_t k) { return InRange(text, i + k, 0x80, 0xbf); };
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return continues(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const int low = lead == 0xe0 ? 0xa0 : 0x80;
    const int high = lead == 0xed ? 0x9f : 0xbf;
    return InRange(text, i + 1, low, high) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const int low = lead == 0xf0 ? 0x90 : 0x80;
    const int high = lead == 0xf4 ? 0x8f : 0xbf;
    return InRange(text, i + 1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

size_t ValidUtf8Prefix(absl::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const size_t length = SequenceLength(text, i);
    if (length == 0) break;
    i += length;
  }
  return i;
}

std::string AsUtf8(std::string text) {
  std::string clean;
  absl::string_view rest = text;
  while (true) {
    const size_t valid = ValidUtf8Prefix(rest);
    if (clean.empty() && valid == text.size()) return text;
    absl::StrAppend(&clean, rest.substr(0, valid));
    rest.remove_prefix(valid);
    if (rest.empty()) return clean;
    clean.push_back('?');
    rest.remove_prefix(1);
  }
}

}  // namespace espalier
