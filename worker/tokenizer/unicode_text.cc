#include "worker/tokenizer/unicode_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "common/base/utf8.h"

namespace espalier {
namespace {

// Bytes that a sequence with this lead byte has; 0: it is none.
size_t SequenceBytes(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

// Whether `second` may follow the lead byte (Unicode 15, table 3-7).
bool IsSecond(uint8_t lead, uint8_t second) {
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  return second >= low && second <= high;
}

// Length of the longest start that begins a well-formed sequence; at least 1.
size_t MaximalPart(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const size_t wanted = SequenceBytes(byte(0));
  if (wanted < 2 || text.size() < 2 || !IsSecond(byte(0), byte(1))) return 1;
  size_t size = 2;
  while (size < std::min(wanted, text.size()) && (byte(size) & 0xc0) == 0x80) ++size;
  return size;
}

// Nothing below U+0300 changes in NFC, and it begins with this lead byte.
bool StaysInNfc(absl::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<uint8_t>(c) >= 0xcc; });
}

int CombiningClass(int32_t code_point) {
  return static_cast<int>(utf8proc_get_property(code_point)->combining_class);
}

// Marks in the order of their classes. (utf8proc's own takes quadratic time for many marks.)
void OrderMarks(std::vector<int32_t>& points) {
  const auto end = points.end();
  for (auto begin = points.begin(); begin != end;) {
    if (CombiningClass(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto after = std::find_if(begin, end, [](int32_t p) { return CombiningClass(p) == 0; });
    std::stable_sort(begin, after,
                     [](int32_t a, int32_t b) { return CombiningClass(a) < CombiningClass(b); });
    begin = after;
  }
}

void AppendCodePoint(int32_t point, std::string& out) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const auto size = utf8proc_encode_char(point, bytes.data());
  out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(size));
}

void AppendNormalized(absl::string_view text, NormalForm form, std::string& out) {
  if (form == NormalForm::kC && StaysInNfc(text)) {
    out.append(text.data(), text.size());
    return;
  }
  int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kKC || form == NormalForm::kKD) options |= UTF8PROC_COMPAT;
  std::vector<int32_t> points;
  points.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = FirstCodePoint(text);
    std::array<int32_t, 32> parts;  // the longest decomposition has 18
    int boundary = 0;
    const auto count = utf8proc_decompose_char(point.value, parts.data(), parts.size(),
                                               static_cast<utf8proc_option_t>(options), &boundary);
    points.insert(points.end(), parts.begin(), parts.begin() + std::max<int64_t>(count, 0));
    text.remove_prefix(point.bytes);
  }
  OrderMarks(points);
  auto count = static_cast<utf8proc_ssize_t>(points.size());
  if (form == NormalForm::kC || form == NormalForm::kKC) {
    count = utf8proc_normalize_utf32(
        points.data(), count, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  }
  for (utf8proc_ssize_t i = 0; i < count; ++i) AppendCodePoint(points[static_cast<size_t>(i)], out);
}

template <typename Change>
std::string Changed(absl::string_view text, Change change) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = FirstCodePoint(text);
    const bool bad = point.value == kReplacementCodePoint && point.bytes == 1;
    if (bad) {
      out += text.front();
    } else {
      AppendCodePoint(change(point.value), out);
    }
    text.remove_prefix(point.bytes);
  }
  return out;
}

}  // namespace

bool IsUtf8(absl::string_view text) { return ValidUtf8Prefix(text) == text.size(); }

std::string WithReplacements(absl::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  for (;;) {
    const size_t good = ValidUtf8Prefix(text);
    valid.append(text.data(), good);
    text.remove_prefix(good);
    if (text.empty()) return valid;
    valid += kReplacementCharacter;
    text.remove_prefix(MaximalPart(text));
  }
}

size_t UnfinishedBytes(absl::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(3, text.size()); ++size) {
    const absl::string_view end = text.substr(text.size() - size);
    const auto lead = static_cast<uint8_t>(end.front());
    if ((lead & 0xc0) == 0x80) continue;
    return MaximalPart(end) == size && SequenceBytes(lead) > size ? size : 0;
  }
  return 0;
}

CodePoint FirstCodePoint(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<int32_t>(static_cast<uint8_t>(text[i])); };
  const size_t size = SequenceBytes(static_cast<uint8_t>(byte(0)));
  if (size == 1) return {byte(0), 1};
  if (size == 0 || MaximalPart(text) != size) return {kReplacementCodePoint, 1};
  int32_t value = byte(0) & (0x7f >> size);
  for (size_t i = 1; i < size; ++i) value = value << 6 | (byte(i) & 0x3f);
  return {value, size};
}

CodePoint LastCodePoint(absl::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(4, text.size()); ++size) {
    const absl::string_view end = text.substr(text.size() - size);
    if ((static_cast<uint8_t>(end.front()) & 0xc0) == 0x80) continue;
    const CodePoint point = FirstCodePoint(end);
    if (point.bytes == size) return point;
    break;
  }
  return {kReplacementCodePoint, 1};
}

std::string Normalized(absl::string_view text, NormalForm form) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t good = ValidUtf8Prefix(text);
    AppendNormalized(text.substr(0, good), form, out);
    text.remove_prefix(good);
    if (text.empty()) break;
    const size_t bad = MaximalPart(text);
    out.append(text.data(), bad);
    text.remove_prefix(bad);
  }
  return out;
}

std::string Upper(absl::string_view text) { return Changed(text, utf8proc_toupper); }
std::string Lower(absl::string_view text) { return Changed(text, utf8proc_tolower); }

bool IsSpace(int32_t p) {
  return (p >= 0x09 && p <= 0x0d) || p == 0x20 || p == 0x85 || p == 0xa0 || p == 0x1680 ||
         (p >= 0x2000 && p <= 0x200a) || p == 0x2028 || p == 0x2029 || p == 0x202f || p == 0x205f ||
         p == 0x3000;
}

bool IsWord(int32_t p) {
  switch (utf8proc_category(p)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace espalier
