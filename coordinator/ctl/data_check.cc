#include "coordinator/ctl/data_check.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/packing.h"
#include "common/base/status_macros.h"
#include "common/config/epochs.h"

namespace espalier::ctl {
namespace {

constexpr int64_t kManifestBytesMax = 64 << 20;
constexpr size_t kTableHeaderBytes = 64, kEntryBytes = 16;  // worker/data/README.md

std::optional<HeldData> Parse(absl::string_view manifest) {
  const auto json = nlohmann::json::parse(manifest.begin(), manifest.end(), nullptr,
                                          /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", "") != "espalier-tokens") return std::nullopt;
  const int64_t version = json.value("version", int64_t{0});
  const std::string holds = json.value("holds", "");
  const bool examples =
      version == 2 && (holds == "prompt-completion" || holds == "masked-examples");
  const bool prompts = version == 2 && holds == "prompts";
  const bool preferences = version == 2 && holds == "preferences";
  if (version != 1 && !examples && !prompts && !preferences) return std::nullopt;
  const auto tokens = nlohmann::json::json_pointer("/splits/train/tokens");
  if (!json.contains(tokens)) return std::nullopt;
  const auto documents = nlohmann::json::json_pointer("/splits/train/documents");
  HeldData held{.examples = examples,
                .pairs = holds == "prompt-completion",
                .prompts = prompts,
                .preferences = preferences,
                .training_tokens = json.at(tokens).get<int64_t>(),
                .training_documents = json.value(documents, int64_t{0}) / (preferences ? 2 : 1)};
  const auto tables = nlohmann::json::json_pointer("/splits/train/examples");
  for (const nlohmann::json& table : json.value(tables, nlohmann::json::array())) {
    held.tables.push_back(table.at("file").get<std::string>());
    if (absl::StrContains(held.tables.back(), '/')) return std::nullopt;  // leaves the folder
  }
  return held;
}

uint64_t LittleEndian(const char* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

// Adds the tokens of each example of a table, whose first one begins where `end` is, and moves that
// on. False for what cannot be.
bool AddLengths(absl::string_view table, const HeldData& held, int64_t room, int64_t& end,
                std::vector<int64_t>& lengths) {
  if (table.size() < kTableHeaderBytes || (table.size() - kTableHeaderBytes) % kEntryBytes != 0) {
    return false;
  }
  for (size_t at = kTableHeaderBytes; at < table.size(); at += kEntryBytes) {
    const auto completion = static_cast<int64_t>(LittleEndian(&table[at]));
    const auto next = static_cast<int64_t>(LittleEndian(&table[at + 8]));
    if (next <= end || next > held.training_tokens) return false;
    // An empty prompt is stood in for by a token.
    const int64_t more = held.pairs && completion == end ? 1 : 0;
    lengths.push_back(std::min(next - end + more, room));
    end = next;
  }
  return true;
}

std::string FolderOf(const v1::JobSpec& spec) {
  return ExpandHome(spec.data().path()).value_or(spec.data().path());
}

}  // namespace

std::optional<HeldData> ReadManifest(absl::string_view manifest) {
  try {
    return Parse(manifest);
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;  // a field of another kind
  }
}

absl::Status CheckHeldData(const v1::JobSpec& spec, const HeldData& held,
                           absl::string_view folder) {
  const v1::Task task = spec.train().task();
  const bool samples = task == v1::TASK_RFT || task == v1::TASK_GRPO;
  if (samples != held.prompts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path is ", folder,
        samples ? ", which holds no prompts, and train.task rft and grpo have prompts completed "
                  "and judged: name a folder made with `espalier data prepare --format prompts`"
                : ", which holds prompts that are to be completed and judged: set train.task to "
                  "rft or grpo, or name a folder of examples or of text"));
  }
  const bool dpo = task == v1::TASK_DPO;
  if (dpo != held.preferences) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path is ", folder,
        dpo ? ", which holds no pairs of answers, and train.task dpo learns which of two was "
              "chosen: name a folder made with `espalier data prepare --format preferences`"
            : ", which holds pairs of a chosen and a rejected answer: set train.task to dpo, or "
              "name a folder of examples or of text"));
  }
  if (samples || dpo) return absl::OkStatus();
  if (task == v1::TASK_TRM && held.examples) return absl::OkStatus();  // puzzles, or conversations
  const bool sft = task == v1::TASK_SFT;
  if (sft && !held.examples) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.task is sft, which learns from examples, such as prompts with their completions, "
        "and "
        "data.path is ",
        folder,
        ", which holds text: name a folder made with `espalier data prepare --format auto`, or set "
        "train.task to pretrain"));
  }
  if (!sft && held.examples) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.task is pretrain, which learns from text, and data.path is ", folder,
                     ", which holds examples, such as prompts with completions: set train.task to "
                     "sft, or name a folder of text "
                     "made with `espalier data prepare`"));
  }
  const int64_t longest = held.training_tokens - 1;  // one more for the last target
  if (sft || spec.data().sequence_length() <= longest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data.sequence_length is ", spec.data().sequence_length(),
                   ", and the split 'train' of ", folder, " has ", held.training_tokens,
                   " tokens, which is too few for one sequence: allowed: ", "up to ", longest,
                   ", or prepare more text"));
}

absl::StatusOr<int64_t> CountPackedRows(const HeldData& held, absl::string_view folder,
                                        int64_t sequence_length) {
  const int64_t room = sequence_length + 1;
  std::vector<int64_t> lengths;
  int64_t end = 0;
  for (const std::string& name : held.tables) {
    const std::string path = JoinPath(folder, name);
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    const absl::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()),
                                  file.bytes().size());
    if (AddLengths(bytes, held, room, end, lengths)) continue;
    return absl::DataLossError(
        absl::StrCat(path,
                     " is damaged, so the rows that data.packing makes of it cannot be "
                     "counted; run `espalier data prepare` again"));
  }
  return PackLongestFirst(lengths, room).rows();
}

absl::Status CheckData(v1::JobSpec& spec) {
  const std::string folder = FolderOf(spec);
  const absl::StatusOr<std::string> manifest =
      PosixFileSystem().Read(JoinPath(folder, "manifest.json"), kManifestBytesMax);
  const std::optional<HeldData> held = manifest.ok() ? ReadManifest(*manifest) : std::nullopt;
  if (held) {
    RETURN_IF_ERROR(CheckHeldData(spec, *held, folder));
    int64_t samples = (held->training_tokens - 1) / spec.data().sequence_length();
    if (held->examples || held->prompts || held->preferences) {
      samples = held->training_documents * CompletionsOfSample(spec);
    }
    if (held->examples && spec.data().packing() && spec.train().has_epochs()) {
      ASSIGN_OR_RETURN(samples, CountPackedRows(*held, folder, spec.data().sequence_length()));
    }
    return ResolveEpochs(samples, spec);
  }
  if (!NeedsSamples(spec)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "train.epochs is ", spec.train().epochs(), ", of data that lie in ", folder,
      ", and this machine has none there that say how many samples "
      "they have; submit where they lie, or give train.steps in place of train.epochs"));
}

std::string DataRemark(const v1::JobSpec& spec) {
  const std::string folder = FolderOf(spec);
  std::error_code error;
  if (std::filesystem::exists(JoinPath(folder, "manifest.json"), error)) return "";
  const bool there = std::filesystem::exists(folder, error);
  return absl::StrCat("data.path: ", folder, there ? " holds no prepared data" : " does not exist",
                      " on this machine; each node that trains needs it, made by `espalier data "
                      "prepare --output FOLDER`");
}

}  // namespace espalier::ctl
