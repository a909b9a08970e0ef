// One file for llama.cpp.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "worker/state/export_folder.h"
#include "worker/state/export_model.h"
#include "worker/state/gguf_model.h"
#include "worker/tensor/torch_compat.h"
#include "worker/tokenizer/gguf_vocabulary.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

constexpr char kEnding[] = ".gguf";

std::string LastWord(absl::string_view path) {
  path = absl::StripSuffix(path, "/");
  const size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos ? path : path.substr(slash + 1));
}

GgufType TypeOf(torch::ScalarType type) {
  if (type == torch::kBFloat16) return GgufType::kBF16;
  return type == torch::kHalf ? GgufType::kF16 : GgufType::kF32;
}

torch::ScalarType ScalarTypeOf(GgufType type) {
  if (type == GgufType::kBF16) return torch::kBFloat16;
  return type == GgufType::kF16 ? torch::kHalf : torch::kFloat;
}

// As llama.cpp numbers what most of a file is.
uint32_t FileType(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return 0;
    case GgufType::kF16:
      return 1;
    case GgufType::kQ8_0:
      return 7;
    case GgufType::kBF16:
      return 32;
  }
  return 0;
}

// Of one tensor: its operations want all that is no matrix in fp32, and its converter keeps learned
// positions so.
GgufType TypeOf(const ExportedTensor& tensor, GgufType type) {
  if (tensor.shape.size() < 2 || absl::StartsWith(tensor.name, "position_embd")) {
    return GgufType::kF32;
  }
  const bool whole_blocks = tensor.shape.back() % kQ8BlockElements == 0;
  return type == GgufType::kQ8_0 && !whole_blocks ? GgufType::kF16 : type;
}

// A block's scale is that of its largest value, which becomes 127.
std::vector<std::byte> Quantized(const torch::Tensor& value) {
  const auto* const in = value.data_ptr<float>();
  std::vector<std::byte> out(value.numel() / kQ8BlockElements * kQ8BlockBytes);
  std::byte* to = out.data();
  for (int64_t begin = 0; begin < value.numel(); begin += kQ8BlockElements) {
    float largest = 0;
    for (int64_t i = 0; i < kQ8BlockElements; ++i) {
      largest = std::max(largest, std::abs(in[begin + i]));
    }
    const float scale = largest / 127, inverse = scale > 0 ? 1 / scale : 0;
    const at::Half rounded(scale);
    std::memcpy(to, &rounded, sizeof(rounded));
    to += sizeof(rounded);
    for (int64_t i = 0; i < kQ8BlockElements; ++i) {
      *to++ = static_cast<std::byte>(static_cast<int8_t>(std::round(in[begin + i] * inverse)));
    }
  }
  return out;
}

absl::Status WriteTensor(const ExportedTensor& tensor, GgufType type, GgufWriter& writer) {
  ASSIGN_OR_RETURN(const torch::Tensor value, ConvertedValue(tensor, ScalarTypeOf(type)));
  if (type != GgufType::kQ8_0) {
    return writer.Append({static_cast<const std::byte*>(value.data_ptr()), value.nbytes()});
  }
  constexpr double kLargest = 127.0 * 65504;  // what a scale in fp16 can express
  bool fits = false;
  RETURN_IF_ERROR(CatchTorch(absl::StrCat("quantizing ", tensor.name),
                             [&] { fits = (value.abs() <= kLargest).all().item<bool>(); }));
  if (fits) return writer.Append(Quantized(value));
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor ", tensor.name, " has values that are not finite or beyond the range of q8_0; ",
      "export as fp32 or bf16"));
}

absl::StatusOr<GgufVocabulary> VocabularyOf(const ExportSource& source, const std::string& from) {
  const DecoderConfig& config = source.model.config;
  ASSIGN_OR_RETURN(const std::string folder, TokenizerFolder(source.base, from));
  const auto tokenizer = OpenTokenizer(folder);
  if (absl::IsNotFound(tokenizer.status())) return NoGgufVocabulary();
  if (!tokenizer.ok()) return tokenizer.status();
  return MakeGgufVocabulary(**tokenizer, config.vocab_size, config.bos_token_id);
}

struct GgufFile {
  GgufFacts facts;
  std::vector<ExportedTensor> tensors;
  std::vector<GgufTensor> places;  // of the tensors
  Exported exported;
};

absl::StatusOr<GgufFile> Describe(const ExportSource& source, const GgufExportOptions& options) {
  const GgufType type = options.type.value_or(TypeOf(source.stored_type));
  ASSIGN_OR_RETURN(GgufDecoder decoder, MakeGgufDecoder(source.model.config));
  ASSIGN_OR_RETURN(GgufVocabulary vocabulary, VocabularyOf(source, options.from));
  GgufFile file;
  AddFact(file.facts, "general.architecture", decoder.architecture);
  AddFact(file.facts, "general.type", std::string("model"));
  AddFact(file.facts, "general.name",
          std::string(absl::StripSuffix(LastWord(options.output), kEnding)));
  AddFact(file.facts, "general.file_type", FileType(type));
  AddFact(file.facts, "general.quantization_version", uint32_t{2});
  if (!source.base.empty()) {
    AddFact(file.facts, "general.base_model.count", uint32_t{1});
    AddFact(file.facts, "general.base_model.0.name", LastWord(source.base));
  }
  for (GgufFacts* facts : {&decoder.facts, &vocabulary.facts}) {
    std::move(facts->begin(), facts->end(), std::back_inserter(file.facts));
  }
  file.exported.base = source.base;
  file.exported.weight_files = 1;
  for (std::vector<std::string>* notes : {&decoder.notes, &vocabulary.notes}) {
    std::move(notes->begin(), notes->end(), std::back_inserter(file.exported.notes));
  }
  file.tensors = GgufTensors(source.model, decoder.architecture);
  for (const ExportedTensor& tensor : file.tensors) {
    file.places.push_back({tensor.name, TypeOf(tensor, type), tensor.shape});
    ASSIGN_OR_RETURN(const int64_t bytes, GgufBytes(file.places.back()));
    file.exported.bytes += bytes;
  }
  for (const Parameter& parameter : source.model.parameters.all()) {
    if (!parameter.shape.is_adapter()) file.exported.parameters += parameter.size;
  }
  return file;
}

absl::Status Write(FileSystem& files, const std::string& path, const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> out, files.Create(path));
  ASSIGN_OR_RETURN(GgufWriter writer, GgufWriter::Create(file.facts, file.places,
                                                         [&](absl::Span<const std::byte> bytes) {
                                                           return out->Append(bytes);
                                                         }));
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    RETURN_IF_ERROR(WriteTensor(file.tensors[i], file.places[i].type, writer));
  }
  RETURN_IF_ERROR(writer.Finish());
  RETURN_IF_ERROR(out->Sync());
  return out->Close();
}

}  // namespace

absl::StatusOr<Exported> ExportGguf(const GgufExportOptions& options) {
  FileSystem& files = PosixFileSystem();
  if (!absl::EndsWith(options.output, kEnding)) {
    return absl::InvalidArgumentError(absl::StrCat("--output is '", options.output,
                                                   "'; with --format gguf it is a file, whose ",
                                                   "name ends in ", kEnding));
  }
  if (!absl::IsNotFound(MappedFile::Open(options.output).status())) {
    return absl::AlreadyExistsError(
        absl::StrCat(options.output, " is there already; give --output a file that is not"));
  }
  ASSIGN_OR_RETURN(const ExportSource source, OpenExportSource(options.from));
  ASSIGN_OR_RETURN(const GgufFile file, Describe(source, options));
  const std::string partial = options.output + ".partial";
  const absl::Status written = Write(files, partial, file);
  if (!written.ok()) {
    files.Remove(partial).IgnoreError();
    return written;
  }
  RETURN_IF_ERROR(files.Rename(partial, options.output));
  RETURN_IF_ERROR(files.SyncDirectory(ParentPath(options.output)));
  return file.exported;
}

}  // namespace espalier
