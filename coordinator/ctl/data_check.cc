#include "coordinator/ctl/data_check.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/packing.h"
#include "common/base/status_macros.h"
#include "common/config/epochs.h"
#include "common/config/yaml_tree.h"

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
  for (auto [name, files] : {std::pair{"examples", &held.tables}, {"records", &held.records}}) {
    const nlohmann::json::json_pointer place(absl::StrCat("/splits/train/", name));
    for (const nlohmann::json& shard : json.value(place, nlohmann::json::array())) {
      files->push_back(shard.at("file").get<std::string>());
      if (absl::StrContains(files->back(), '/')) return std::nullopt;  // leaves the folder
    }
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

absl::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Of the split 'train'; empty where it cannot be read.
std::string FirstRecord(const HeldData& held, absl::string_view folder) {
  if (held.tables.empty() || held.records.empty()) return "";
  const auto table = MappedFile::Open(JoinPath(folder, held.tables.front()));
  const auto records = MappedFile::Open(JoinPath(folder, held.records.front()));
  if (!table.ok() || !records.ok()) return "";
  const absl::string_view entries = TextOf(*table), bytes = TextOf(*records);
  if (entries.size() < kTableHeaderBytes + kEntryBytes) return "";
  const uint64_t size = LittleEndian(&entries[kTableHeaderBytes]);
  if (bytes.size() < kTableHeaderBytes || bytes.size() - kTableHeaderBytes < size) return "";
  return std::string(bytes.substr(kTableHeaderBytes, size));
}

// What records of a verifier that comes with Espalier hold (worker/reward/README.md).
struct RecordRule {
  const char* kind;
  const char* field;
  const char* type;
  bool (nlohmann::json::*is)() const noexcept;
};
constexpr RecordRule kRecordRules[] = {
    {"wordle", "secret", "a text", &nlohmann::json::is_string},
    {"units", "answer", "a number", &nlohmann::json::is_number},
    {"arithmetic", "answer", "a whole number", &nlohmann::json::is_number_integer},
};

std::string FolderOf(const v1::JobSpec& spec) {
  return ExpandHome(spec.data().path()).value_or(spec.data().path());
}

std::string ModelFolderOf(const v1::JobSpec& spec) {
  return ExpandHome(spec.model().from()).value_or(spec.model().from());
}

bool Holds(const std::string& folder, const char* file) {
  std::error_code error;
  return std::filesystem::exists(JoinPath(folder, file), error);
}

// By the names that worker/state/checkpoint_store.h gives, whose numbers are as wide; published
// ones have a manifest.
std::optional<std::string> NewestCheckpoint(const std::string& folder) {
  std::vector<std::string> names =
      PosixFileSystem().List(folder).value_or(std::vector<std::string>());
  std::sort(names.rbegin(), names.rend());
  for (const std::string& name : names) {
    const bool step = absl::StartsWith(name, "step-") && !absl::StrContains(name, '.');
    if (step && Holds(JoinPath(folder, name), "manifest.json")) return name;
  }
  return std::nullopt;
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
    if (AddLengths(TextOf(file), held, room, end, lengths)) continue;
    return absl::DataLossError(
        absl::StrCat(path,
                     " is damaged, so the rows that data.packing makes of it cannot be "
                     "counted; run `espalier data prepare` again"));
  }
  return PackLongestFirst(lengths, room).rows();
}

absl::Status CheckFirstRecord(const v1::JobSpec& spec, const HeldData& held,
                              absl::string_view folder) {
  const std::string& kind = spec.train().verifier().kind();
  const auto* rule = absl::c_find_if(kRecordRules, [&](const auto& r) { return r.kind == kind; });
  if (rule == std::end(kRecordRules)) return absl::OkStatus();
  const std::string record = FirstRecord(held, folder);
  const auto json = nlohmann::json::parse(record, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::OkStatus();
  const auto field = json.find(rule->field);
  if (field != json.end() && ((*field).*(rule->is))()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "train.verifier.kind is ", kind, ", whose records have '", rule->field, "', ", rule->type,
      ", and that of the first prompt of ", folder, " is ", Quoted(record),
      ": name in data.path a folder of prompts for it (`espalier data make ", kind,
      "` makes some, `espalier data prepare --format prompts` prepares them), or set "
      "train.verifier.kind to what judges these: wordle, units, arithmetic or external"));
}

absl::Status CheckData(v1::JobSpec& spec) {
  const std::string folder = FolderOf(spec);
  const absl::StatusOr<std::string> manifest =
      PosixFileSystem().Read(JoinPath(folder, "manifest.json"), kManifestBytesMax);
  const std::optional<HeldData> held = manifest.ok() ? ReadManifest(*manifest) : std::nullopt;
  if (held) {
    RETURN_IF_ERROR(CheckHeldData(spec, *held, folder));
    RETURN_IF_ERROR(CheckFirstRecord(spec, *held, folder));
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

std::string ProgramRemark(const v1::JobSpec& spec) {
  const v1::VerifierSpec& verifier = spec.train().verifier();
  if (verifier.kind() != "external" || verifier.command().empty()) return "";
  const std::string& program = verifier.command(0);
  if (!absl::StrContains(program, '/')) return "";  // searched for in the PATH of each node
  std::error_code error;
  const bool there = std::filesystem::is_regular_file(program, error);
  if (there && access(program.c_str(), X_OK) == 0) return "";
  return absl::StrCat("train.verifier.command: ", program,
                      there ? " is not executable (chmod +x)" : " is no file",
                      " on this machine; each node that trains needs the program");
}

absl::Status CheckModel(v1::JobSpec& spec) {
  if (!spec.model().has_from()) return absl::OkStatus();
  const std::string folder = ModelFolderOf(spec);
  if (Holds(folder, "config.json")) return absl::OkStatus();
  if (const std::optional<std::string> newest = NewestCheckpoint(folder)) {
    spec.mutable_model()->set_from(JoinPath(spec.model().from(), *newest));
    return absl::OkStatus();
  }
  constexpr char kHint[] =
      "; name a checkpoint (.../checkpoints/step-00000500), a folder of checkpoints, of which the "
      "newest is taken, or a folder of a model in the Hugging Face layout";
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(folder);
  if (absl::IsNotFound(names.status()) || absl::IsPermissionDenied(names.status())) {
    return absl::Status(
        names.status().code(),
        absl::StrCat(
            "model.from: ", folder,
            absl::IsNotFound(names.status()) ? " does not exist" : " may not be read",
            " on this machine", kHint,
            "; where only the nodes have it, `espalier submit` takes the job all the same"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "model.from: ", folder, " is no model: ",
      names.ok() ? "it holds no config.json and no checkpoint" : names.status().message(), kHint));
}

}  // namespace espalier::ctl
