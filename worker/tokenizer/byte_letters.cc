#include "worker/tokenizer/byte_letters.h"

#include <array>

namespace espalier {
namespace {

constexpr int kCodePoints = 0x144;  // one more than the last that stands for a byte

struct Letters {
  std::array<std::string, 256> of_byte;
  std::array<int, kCodePoints> byte_of{};  // -1: none
};

Letters MakeLetters() {
  Letters letters;
  letters.byte_of.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    const int code_point = printable ? byte : next++;
    letters.byte_of[static_cast<size_t>(code_point)] = byte;
    std::string& letter = letters.of_byte[static_cast<size_t>(byte)];
    if (code_point < 0x80) {
      letter.push_back(static_cast<char>(code_point));
    } else {
      letter.push_back(static_cast<char>(0xc0 | (code_point >> 6)));
      letter.push_back(static_cast<char>(0x80 | (code_point & 0x3f)));
    }
  }
  return letters;
}

const Letters& AllLetters() {
  static const Letters& letters = *new Letters(MakeLetters());
  return letters;
}

}  // namespace

const std::string& ByteLetter(uint8_t byte) { return AllLetters().of_byte[byte]; }

std::string ByteLetters(absl::string_view bytes) {
  std::string letters;
  letters.reserve(bytes.size() * 2);
  for (const char byte : bytes) letters += ByteLetter(static_cast<uint8_t>(byte));
  return letters;
}

std::optional<std::string> BytesOfLetters(absl::string_view letters) {
  std::string bytes;
  for (size_t i = 0; i < letters.size(); ++i) {
    int code_point = static_cast<uint8_t>(letters[i]);
    if (code_point >= 0x80) {
      if (code_point < 0xc2 || code_point > 0xc5 || i + 1 == letters.size()) return std::nullopt;
      code_point = ((code_point & 0x1f) << 6) | (static_cast<uint8_t>(letters[++i]) & 0x3f);
    }
    const int byte =
        code_point < kCodePoints ? AllLetters().byte_of[static_cast<size_t>(code_point)] : -1;
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

}  // namespace espalier
