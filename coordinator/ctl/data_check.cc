#include "coordinator/ctl/data_check.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/config/epochs.h"

namespace espalier::ctl {
namespace {

constexpr int64_t kManifestBytesMax = 64 << 20;

std::optional<HeldData> Parse(absl::string_view manifest) {
  const auto json = nlohmann::json::parse(manifest.begin(), manifest.end(), nullptr,
                                          /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", "") != "espalier-tokens") return std::nullopt;
  const int64_t version = json.value("version", int64_t{0});
  const std::string holds = json.value("holds", "");
  const bool examples =
      version == 2 && (holds == "prompt-completion" || holds == "masked-examples");
  if (version != 1 && !examples) return std::nullopt;
  const auto tokens = nlohmann::json::json_pointer("/splits/train/tokens");
  if (!json.contains(tokens)) return std::nullopt;
  const auto documents = nlohmann::json::json_pointer("/splits/train/documents");
  return HeldData{.examples = examples,
                  .training_tokens = json.at(tokens).get<int64_t>(),
                  .training_documents = json.value(documents, int64_t{0})};
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
  const bool sft = spec.train().task() == v1::TASK_SFT;
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

absl::Status CheckData(v1::JobSpec& spec) {
  const std::string folder = FolderOf(spec);
  const absl::StatusOr<std::string> manifest =
      PosixFileSystem().Read(JoinPath(folder, "manifest.json"), kManifestBytesMax);
  const std::optional<HeldData> held = manifest.ok() ? ReadManifest(*manifest) : std::nullopt;
  if (held) {
    RETURN_IF_ERROR(CheckHeldData(spec, *held, folder));
    const int64_t windows = (held->training_tokens - 1) / spec.data().sequence_length();
    return ResolveEpochs(held->examples ? held->training_documents : windows, spec);
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
