#include "worker/data/document_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr size_t kLineBytesMax = size_t{256} << 20;
constexpr size_t kCutSearchBytes = size_t{64} << 10;

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Where a piece that is followed by more text ends: after its last line, else before the character
// that may go on.
size_t PieceEnd(absl::string_view text) {
  const size_t newline = text.rfind('\n');
  if (newline != absl::string_view::npos) return newline + 1;
  size_t end = text.size() - 1;
  while (end > text.size() - 4 && IsContinuation(text[end])) --end;
  return end;
}

// Reads a file forward into a buffer that grows only as far as the caller asks.
class ForwardFile {
 public:
  static absl::StatusOr<ForwardFile> Open(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
    return ForwardFile(fd, path);
  }
  ForwardFile(ForwardFile&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        path_(std::move(other.path_)),
        buffer_(std::move(other.buffer_)),
        used_(other.used_),
        position_(other.position_),
        ended_(other.ended_) {}
  ForwardFile& operator=(ForwardFile&&) = delete;
  ~ForwardFile() {
    if (fd_ >= 0) close(fd_);
  }

  // Reads on until `size` bytes are held or the file ends.
  absl::Status Fill(size_t size) {
    if (used_ > 0) {
      buffer_.erase(0, used_);
      position_ += static_cast<int64_t>(std::exchange(used_, 0));
    }
    while (!ended_ && buffer_.size() < size) {
      const size_t had = buffer_.size();
      buffer_.resize(size);
      const ssize_t got = read(fd_, buffer_.data() + had, size - had);
      buffer_.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
      if (got < 0 && errno != EINTR) {
        return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
      }
      if (got == 0) ended_ = true;
    }
    return absl::OkStatus();
  }
  absl::string_view held() const { return absl::string_view(buffer_).substr(used_); }
  // The next `size` held bytes; valid until the next Fill.
  absl::string_view Take(size_t size) {
    const absl::string_view taken = held().substr(0, size);
    used_ += taken.size();
    return taken;
  }
  int64_t position() const { return position_ + static_cast<int64_t>(used_); }
  bool ended() const { return ended_; }
  const std::string& path() const { return path_; }

 private:
  ForwardFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
  std::string buffer_;
  size_t used_ = 0;       // bytes at the front of the buffer that were taken
  int64_t position_ = 0;  // of the front of the buffer in the file
  bool ended_ = false;
};

class TextReader : public DocumentReader {
 public:
  explicit TextReader(ForwardFile file) : file_(std::move(file)) {}

  absl::StatusOr<bool> Next(DocumentPiece& piece) override {
    RETURN_IF_ERROR(file_.Fill(kPieceBytes + 1));  // one more byte tells whether the file goes on
    if (file_.held().empty()) return false;
    const bool last = file_.held().size() <= kPieceBytes;
    const size_t end = last ? file_.held().size() : PieceEnd(file_.held().substr(0, kPieceBytes));
    piece.position = file_.position();
    piece.first = piece.position == 0;
    piece.last = last;
    piece.text = file_.Take(end);
    return true;
  }

 private:
  ForwardFile file_;
};

class JsonlReader : public DocumentReader {
 public:
  JsonlReader(ForwardFile file, std::string field)
      : file_(std::move(file)), field_(std::move(field)) {}

  absl::StatusOr<bool> Next(DocumentPiece& piece) override {
    for (;;) {
      piece.position = file_.position();
      ASSIGN_OR_RETURN(const bool found, NextLine());
      if (!found) return false;
      if (absl::StripAsciiWhitespace(line_).empty()) continue;
      RETURN_IF_ERROR(ParseLine());
      if (document_.empty()) continue;
      piece.text = document_;
      piece.first = piece.last = true;
      return true;
    }
  }

 private:
  // Sets line_; false at the end of the file.
  absl::StatusOr<bool> NextLine() {
    line_ = {};
    size_t newline = file_.held().find('\n');
    for (size_t size = kPieceBytes; newline == absl::string_view::npos && !file_.ended();
         size *= 2) {
      if (size > kLineBytesMax) return Error("the line is longer than 256 MiB");
      RETURN_IF_ERROR(file_.Fill(size));
      newline = file_.held().find('\n');
    }
    if (file_.held().empty()) return false;
    line_ = newline == absl::string_view::npos ? file_.Take(file_.held().size())
                                               : file_.Take(newline + 1);
    ++line_number_;
    return true;
  }

  absl::Status ParseLine() {
    nlohmann::json value =
        nlohmann::json::parse(line_.begin(), line_.end(), nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) return Error("not valid JSON in UTF-8");
    if (!value.is_object()) return Error("not a JSON object");
    const auto it = value.find(field_);
    if (it == value.end()) {
      std::string keys;
      for (const auto& [key, unused] : value.items()) absl::StrAppend(&keys, " '", key, "'");
      return Error(absl::StrCat("no field '", field_, "' (the line has:", keys.substr(0, 200),
                                "); choose one with --field"));
    }
    if (!it->is_string()) return Error(absl::StrCat("field '", field_, "' is not a text"));
    document_ = std::move(it->get_ref<std::string&>());
    return absl::OkStatus();
  }

  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ":", line_number_ + (line_.empty() ? 1 : 0), ": ", what));
  }

  ForwardFile file_;
  std::string field_;
  absl::string_view line_;
  std::string document_;
  int64_t line_number_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DocumentReader>> OpenDocuments(const InputFile& file,
                                                              const std::string& jsonl_field) {
  ASSIGN_OR_RETURN(ForwardFile opened, ForwardFile::Open(file.path));
  std::unique_ptr<DocumentReader> reader;
  if (file.jsonl) {
    reader = std::make_unique<JsonlReader>(std::move(opened), jsonl_field);
  } else {
    reader = std::make_unique<TextReader>(std::move(opened));
  }
  return reader;
}

size_t CutAtOrAfter(absl::string_view text, size_t wanted) {
  if (wanted == 0 || wanted >= text.size()) return std::min(wanted, text.size());
  const size_t newline = text.substr(wanted - 1, kCutSearchBytes).find('\n');
  if (newline != absl::string_view::npos) return wanted + newline;
  size_t cut = wanted;
  while (cut < text.size() && cut < wanted + 3 && IsContinuation(text[cut])) ++cut;
  return cut;
}

}  // namespace espalier
