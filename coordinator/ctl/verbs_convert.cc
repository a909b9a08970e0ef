// convert: a configuration of Hugging Face's trainer as a job file.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/config/job_file.h"
#include "coordinator/ctl/json.h"
#include "coordinator/ctl/trainer_config.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

constexpr int64_t kConfigBytesMax = 1 << 20;

struct Options {
  std::string file;
  ConvertOptions convert;
};

absl::StatusOr<ExitCode> Convert(Context& context, const Options& options) {
  ASSIGN_OR_RETURN(const std::string json, PosixFileSystem().Read(options.file, kConfigBytesMax));
  const absl::StatusOr<std::string> yaml = ConvertTrainerConfig(json, options.convert);
  if (!yaml.ok()) {
    return absl::Status(yaml.status().code(),
                        absl::StrCat(options.file, ": ", yaml.status().message()));
  }
  std::error_code error;
  RETURN_IF_ERROR(LoadJobText({.yaml = *yaml,
                               .origin = absl::StrCat("the job made of ", options.file),
                               .folder = std::filesystem::current_path(error).string()})
                      .status());
  context.terminal.Out(context.options.json() ? JsonText(nlohmann::ordered_json{{"yaml", *yaml}})
                                              : *yaml);
  return kDone;
}

}  // namespace

void AddConvertVerb(VerbTable verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = AddVerb(
      verbs.app, "convert", "Print the job file of a configuration of Hugging Face's trainer",
      "espalier convert apple_silicon_config.json --model models/llama --data chat > job.yaml");
  verb->add_option("FILE", options->file, "Configuration (JSON)")->required();
  verb->add_option("--model", options->convert.model, "Folder of the model")->type_name("DIR");
  verb->add_option("--data", options->convert.data, "Folder written by data prepare")
      ->type_name("DIR");
  verb->add_option("--name", options->convert.name, "Name of the job")
      ->capture_default_str()
      ->type_name("NAME");
  verb->callback([verbs, options] {
    verbs.chosen = [options](Context& context) { return Convert(context, *options); };
  });
}

}  // namespace espalier::ctl
