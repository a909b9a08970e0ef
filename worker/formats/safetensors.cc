#include "worker/formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are mapped, not converted");

constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr size_t kLengthBytes = 8;
constexpr size_t kPieceBytes = size_t{4} << 20;  // a multiple of every element's size

absl::Status Refuse(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is not a valid safetensors file: ", what));
}

// The text of the header; checks the length field against what is there.
absl::StatusOr<absl::string_view> HeaderText(absl::Span<const std::byte> bytes,
                                             absl::string_view path) {
  if (bytes.size() < kLengthBytes) {
    return Refuse(path, absl::StrCat("it has ", bytes.size(), " bytes; even the length takes 8"));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > kHeaderBytesMax) {
    return Refuse(
        path, absl::StrCat("header length ", length, "; at most ", kHeaderBytesMax, " is allowed"));
  }
  if (length > bytes.size() - kLengthBytes) {
    return absl::DataLossError(absl::StrCat(path, " is truncated: the header alone needs ", length,
                                            " bytes, the file has ", bytes.size(),
                                            "; copy the file again"));
  }
  return absl::string_view(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
}

// Sorts by position and checks that the entries cover [0, data_bytes) without gap or overlap.
absl::Status CheckLayout(std::vector<HeaderEntry>& entries, int64_t data_bytes,
                         absl::string_view path) {
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t position = 0;
  for (const HeaderEntry& entry : entries) {
    absl::StatusOr<int64_t> size = TensorBytes(entry.spec);
    if (!size.ok()) return Refuse(path, size.status().message());
    if (entry.end < entry.begin || entry.end - entry.begin != *size) {
      return Refuse(
          path, absl::StrCat("tensor ", entry.spec.name, " has data_offsets [", entry.begin, ", ",
                             entry.end, "], but its ", TensorTypeName(entry.spec.type), " ",
                             ShapeText(entry.spec.shape), " takes ", *size, " bytes"));
    }
    if (entry.begin != position) {
      return Refuse(path, absl::StrCat("tensor ", entry.spec.name, " starts at ", entry.begin,
                                       "; the one before it ends at ", position,
                                       " (tensors must follow each other)"));
    }
    position = entry.end;
  }
  if (position == data_bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path, position > data_bytes ? " is truncated: " : " has bytes that belong to no tensor: ",
      "its tensors take ", position, " bytes, the file has ", data_bytes,
      " after the header; copy the file again"));
}

}  // namespace

absl::Status Safetensors::Stream(
    const TensorView& tensor,
    const std::function<absl::Status(absl::Span<const std::byte> piece)>& body) const {
  for (absl::Span<const std::byte> rest = tensor.bytes; !rest.empty();) {
    const absl::Span<const std::byte> piece = rest.subspan(0, kPieceBytes);
    RETURN_IF_ERROR(body(piece));
    file_.Drop(piece);
    rest.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<Safetensors> Safetensors::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(Safetensors result, Parse(file.bytes(), path));
  result.file_ = std::move(file);
  return result;
}

absl::StatusOr<Safetensors> Safetensors::Parse(absl::Span<const std::byte> bytes,
                                               absl::string_view name) {
  ASSIGN_OR_RETURN(const absl::string_view text, HeaderText(bytes, name));
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(text);
  if (!header.ok()) return Refuse(name, header.status().message());
  const absl::Span<const std::byte> data = bytes.subspan(kLengthBytes + text.size());
  RETURN_IF_ERROR(CheckLayout(header->entries, static_cast<int64_t>(data.size()), name));
  Safetensors result;
  result.name_ = std::string(name);
  result.metadata_ = std::move(header->metadata);
  for (HeaderEntry& entry : header->entries) {
    result.index_[entry.spec.name] = result.tensors_.size();
    result.tensors_.push_back(
        {std::move(entry.spec), data.subspan(entry.begin, entry.end - entry.begin)});
  }
  return result;
}

const TensorView* Safetensors::Find(absl::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

absl::StatusOr<TensorView> Safetensors::Get(const TensorSpec& want) const {
  const TensorView* view = Find(want.name);
  if (view == nullptr) {
    return absl::NotFoundError(absl::StrCat(name_, " has no tensor ", want.name));
  }
  if (view->spec == want) return *view;
  return absl::InvalidArgumentError(
      absl::StrCat(name_, ": tensor ", want.name, " is ", TensorTypeName(view->spec.type), " ",
                   ShapeText(view->spec.shape), "; wanted ", TensorTypeName(want.type), " ",
                   ShapeText(want.shape)));
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(std::vector<TensorSpec> tensors,
                                                            const StringMap& metadata, Sink sink) {
  SafetensorsHeader header{.metadata = metadata};
  std::set<absl::string_view> names;
  int64_t position = 0;
  for (const TensorSpec& spec : tensors) {
    if (spec.name.empty() || spec.name == "__metadata__" || !names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor name '", spec.name, "' is empty, reserved or given twice"));
    }
    ASSIGN_OR_RETURN(const int64_t size, TensorBytes(spec));
    if (size > std::numeric_limits<int64_t>::max() - position) {
      return absl::InvalidArgumentError("the tensors together exceed 2^63 bytes");
    }
    header.entries.push_back({spec, position, position + size});
    position += size;
  }
  ASSIGN_OR_RETURN(const std::string text, FormatSafetensorsHeader(header));
  if (text.size() > kHeaderBytesMax) {
    return absl::InvalidArgumentError("the header exceeds 100 MB; write fewer tensors");
  }
  const uint64_t length = text.size();
  RETURN_IF_ERROR(sink(AsBytes(absl::MakeConstSpan(&length, 1))));
  RETURN_IF_ERROR(sink(AsBytes(absl::MakeConstSpan(text.data(), text.size()))));
  SafetensorsWriter writer(std::move(tensors), std::move(sink));
  writer.SkipFullTensors();
  return writer;
}

void SafetensorsWriter::SkipFullTensors() {
  while (current_ < tensors_.size() && written_ == *TensorBytes(tensors_[current_])) {
    ++current_;
    written_ = 0;
  }
}

absl::Status SafetensorsWriter::Append(absl::Span<const std::byte> bytes) {
  if (bytes.empty()) return absl::OkStatus();
  if (current_ == tensors_.size()) {
    return absl::OutOfRangeError("every tensor of the header is written already");
  }
  const TensorSpec& spec = tensors_[current_];
  const int64_t left = *TensorBytes(spec) - written_;
  if (static_cast<int64_t>(bytes.size()) > left) {
    return absl::OutOfRangeError(
        absl::StrCat("tensor ", spec.name, " has ", left, " bytes left, got ", bytes.size()));
  }
  RETURN_IF_ERROR(sink_(bytes));
  written_ += static_cast<int64_t>(bytes.size());
  SkipFullTensors();
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() const {
  if (current_ == tensors_.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("tensor ", tensors_[current_].name,
                                                    " lacks bytes: ", written_, " of ",
                                                    *TensorBytes(tensors_[current_]), " written"));
}

}  // namespace espalier
