#include "coordinator/ctl/trainer_config.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest.h"
#include "common/config/field_rule.h"

namespace espalier::ctl {
namespace {

using Json = nlohmann::ordered_json;

// One section of the configuration: keys are taken out of it, and what is left over is not known.
class Section {
 public:
  Section(const Json& json, std::string prefix, std::vector<std::string>& problems)
      : json_(json), prefix_(std::move(prefix)), problems_(problems) {}

  // Null counts as absent.
  const Json* Find(const std::string& key) {
    known_.insert(key);
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  // The first of several spellings.
  const Json* FindFirst(const std::vector<std::string>& keys) {
    const Json* found = nullptr;
    for (const std::string& key : keys) {
      const Json* value = Find(key);
      if (found == nullptr) found = value;
    }
    return found;
  }
  double Number(const std::string& key, double absent) {
    const Json* value = Find(key);
    if (value == nullptr) return absent;
    if (value->is_number()) return value->get<double>();
    return Wrong(key, *value, "a number"), absent;
  }
  int64_t Integer(const std::string& key, int64_t absent) {
    const Json* value = Find(key);
    if (value == nullptr) return absent;
    if (value->is_number_integer()) return value->get<int64_t>();
    return Wrong(key, *value, "a whole number"), absent;
  }
  bool Flag(const std::string& key, bool absent) {
    const Json* value = Find(key);
    if (value == nullptr) return absent;
    if (value->is_boolean()) return value->get<bool>();
    return Wrong(key, *value, "true or false"), absent;
  }
  std::string Text(const std::string& key, const std::string& absent) {
    const Json* value = Find(key);
    if (value == nullptr) return absent;
    if (value->is_string()) return value->get<std::string>();
    return Wrong(key, *value, "a text"), absent;
  }
  // What `names` has for the text.
  std::string Choice(const std::string& key, const std::string& absent,
                     const std::map<std::string, std::string>& names) {
    const std::string text = Text(key, absent);
    if (const auto it = names.find(text); it != names.end()) return it->second;
    std::vector<std::string> allowed;
    for (const auto& [name, unused] : names) allowed.push_back(name);
    Wrong(key, text, absl::StrJoin(allowed, ", "));
    return "";
  }
  // A value that says that something is not wanted which cannot be had.
  void MustBeOff(const std::string& key, absl::string_view why) {
    const Json* value = Find(key);
    if (value == nullptr || *value == false) return;
    problems_.push_back(absl::StrCat(prefix_, key, " is ", value->dump(), "; ", why));
  }
  void Wrong(const std::string& key, const Json& value, absl::string_view allowed) {
    problems_.push_back(absl::StrCat(prefix_, key, " is ",
                                     value.dump(-1, ' ', false, Json::error_handler_t::replace),
                                     "; allowed: ", allowed));
  }
  void CheckUnknown() {
    for (const auto& [key, value] : json_.items()) {
      if (known_.count(key) > 0) continue;
      const auto nearest = Nearest(key, {known_.begin(), known_.end()});
      problems_.push_back(
          absl::StrCat(prefix_, key.substr(0, 80), " is not known",
                       nearest ? absl::StrCat("; did you mean ", *nearest, "?")
                               : absl::StrCat("; known are ", absl::StrJoin(known_, ", "))));
    }
  }
  bool Has(const std::string& key) const { return json_.contains(key); }

 private:
  const Json& json_;
  std::string prefix_;
  std::vector<std::string>& problems_;
  std::set<std::string> known_;
};

// Text that YAML reads as text.
std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

class Converter {
 public:
  explicit Converter(const ConvertOptions& options) : options_(options) {}

  absl::StatusOr<std::string> Convert(const Json& json) {
    Section config(json, "", problems_);
    Line(absl::StrCat("name: ", Quoted(options_.name)));
    Model(config);
    Data(config);
    Train(config);
    Lora(config);
    Batch(config);
    Milestones(config);
    Quantization(config);
    NoCounterpart(config);
    config.CheckUnknown();
    if (problems_.empty()) return absl::StrCat(notes_, text_);
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  void Line(absl::string_view line) { absl::StrAppend(&text_, line, "\n"); }
  void Note(absl::string_view note) { absl::StrAppend(&notes_, "# ", note, "\n"); }

  static std::string TextOf(const Json* value) {
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
  }

  void Model(Section& config) {
    model_ =
        TextOf(config.FindFirst({"model_name_or_path", "model_name", "base_model", "model_id"}));
    if (!options_.model.empty()) model_ = options_.model;
    if (model_.empty()) {
      problems_.push_back("no model is named (model_name_or_path); give its folder with --model");
    } else if (options_.model.empty()) {
      Note(
          "model.from is a folder on every node; a name on Hugging Face's hub is none: download "
          "it.");
    }
    Line(absl::StrCat("model:\n  from: ", Quoted(model_)));
  }

  void Data(Section& config) {
    const std::string rows = TextOf(config.FindFirst(
        {"train_data_path", "train_file", "dataset_path", "train_path", "data_path"}));
    const std::string held_out =
        TextOf(config.FindFirst({"eval_data_path", "eval_file", "validation_file", "eval_path"}));
    seed_ = config.Integer("seed", 42);
    const std::string folder = options_.data.empty() ? "data" : options_.data;
    Note(absl::StrCat("The data: espalier data prepare --output ", folder,
                      " --format auto --tokenizer ", model_, " --split-seed ", seed_,
                      held_out.empty() ? "" : absl::StrCat(" --validation-files ", held_out, " --"),
                      " ", rows.empty() ? "FILE.jsonl" : rows));
    const Json* length = config.FindFirst({"max_seq_length", "max_length"});
    Line(absl::StrCat("data:\n  path: ", Quoted(folder), "\n  seed: ", seed_));
    Line(absl::StrCat("  sequence_length: ", length == nullptr ? "1024" : length->dump()));
    const bool packing = config.Flag("packing", false);
    const bool grouped = config.Flag("group_by_length", false);
    if (packing) Line("  packing: true");
    if (grouped) Line("  group_by_length: true");
    if (packing && grouped) {
      problems_.push_back(
          "packing and group_by_length are both true; rows that are full are as "
          "long as each other, so set group_by_length to false");
    }
  }

  void Train(Section& config) {
    const bool fp16 = config.Flag("fp16", false), bf16 = config.Flag("bf16", false);
    if (fp16 && bf16) problems_.push_back("fp16 and bf16 are both true; choose one of them");
    rows_ = config.Integer("per_device_train_batch_size", 8);
    const int64_t batch = rows_ * config.Integer("gradient_accumulation_steps", 1);
    const int64_t steps = config.Integer("max_steps", -1);
    const double epochs = config.Number("num_train_epochs", 3);
    Line("train:\n  task: sft");
    Line(steps > 0 ? absl::StrCat("  steps: ", steps)
                   : absl::StrCat("  epochs: ", NumberText(epochs)));
    Line(absl::StrCat("  global_batch: ", batch, "\n  seed: ", seed_));
    Line(absl::StrCat("  clip_norm: ", NumberText(config.Number("max_grad_norm", 1))));
    Line(absl::StrCat("  precision: ", bf16 ? "bf16" : fp16 ? "fp16" : "fp32"));
    if (config.Flag("gradient_checkpointing", false)) Line("  recompute: [all]");
    Optimizer(config);
    Schedule(config);
  }

  void Optimizer(Section& config) {
    const std::map<std::string, std::string> known{
        {"adamw_torch", "fp32"},      {"adamw_torch_fused", "fp32"}, {"adamw_hf", "fp32"},
        {"adamw_bnb_8bit", "int8"},   {"adamw_8bit", "int8"},        {"paged_adamw_8bit", "int8"},
        {"paged_adamw_32bit", "fp32"}};
    const std::string moments = config.Choice("optim", "adamw_torch", known);
    Line(absl::StrCat("  optimizer:\n    beta1: ", NumberText(config.Number("adam_beta1", 0.9)),
                      "\n    beta2: ", NumberText(config.Number("adam_beta2", 0.999)),
                      "\n    eps: ", NumberText(config.Number("adam_epsilon", 1e-8)),
                      "\n    weight_decay: ", NumberText(config.Number("weight_decay", 0))));
    if (moments == "int8") Line("    moments: int8");
  }

  void Schedule(Section& config) {
    const std::string kind = config.Choice("lr_scheduler_type", "linear",
                                           {{"linear", "linear"},
                                            {"cosine", "cosine"},
                                            {"constant", "constant"},
                                            {"constant_with_warmup", "constant"}});
    Line(absl::StrCat("  schedule:\n    kind: ", kind, "\n    learning_rate: ",
                      NumberText(config.Number("learning_rate", 5e-5)), "\n    final_ratio: 0"));
    const int64_t steps = config.Integer("warmup_steps", 0);
    const double ratio = config.Number("warmup_ratio", 0);
    if (steps > 0) {
      Line(absl::StrCat("    warmup_steps: ", steps));
    } else if (ratio > 0) {
      Line(absl::StrCat("    warmup_ratio: ", NumberText(ratio)));
    }
  }

  void Lora(Section& config) {
    const Json* json = config.FindFirst({"lora", "lora_config", "peft"});
    if (json == nullptr) return;
    if (!json->is_object()) return config.Wrong("lora", *json, "an object");
    Section lora(*json, "lora.", problems_);
    if (!lora.Flag("enabled", true)) return;  // whatever else it says
    const Json* alpha = lora.FindFirst({"lora_alpha", "alpha"});
    const Json* dropout = lora.FindFirst({"lora_dropout", "dropout"});
    Line(absl::StrCat("  lora:\n    rank: ", lora.Integer("r", 8)));
    for (const auto& [field, value, absent] :
         {std::tuple{"alpha", alpha, 8.0}, std::tuple{"dropout", dropout, 0.0}}) {
      if (value != nullptr && !value->is_number()) {
        lora.Wrong(field, *value, "a number");
        continue;
      }
      Line(absl::StrCat("    ", field, ": ",
                        NumberText(value == nullptr ? absent : value->get<double>())));
    }
    const Json* targets = lora.Find("target_modules");
    const bool list = targets != nullptr && targets->is_array();
    if (targets != nullptr && !list && *targets != "all-linear") {
      lora.Wrong("target_modules", *targets, "a list of names, or \"all-linear\"");
    }
    std::vector<std::string> names;
    for (const Json& name : list ? *targets : Json::array({"all-linear"}))
      names.push_back(name.dump());
    Line(absl::StrCat("    targets: [", absl::StrJoin(names, ", "), "]"));
    if (lora.Flag("use_rslora", false)) Line("    rslora: true");
    lora.Choice("bias", "none", {{"none", ""}});
    lora.Choice("task_type", "CAUSAL_LM", {{"CAUSAL_LM", ""}});
    lora.MustBeOff("use_dora", "DoRA cannot be had; set it to false");
    lora.MustBeOff("modules_to_save", "the adapters alone are trained; leave it out");
    lora.CheckUnknown();
  }

  void Batch(Section& config) {
    Line(absl::StrCat("batch:\n  micro_batch: [", rows_, "]"));
    config.Find("per_device_eval_batch_size");  // evaluation finds its own
  }

  // Steps between two; 0 where the strategy is not to.
  int64_t Every(Section& config, const std::vector<std::string>& strategies,
                const std::string& key) {
    const int64_t steps = config.Integer(key, 500);
    int64_t every = steps;
    for (const std::string& strategy : strategies) {
      if (!config.Has(strategy)) {
        config.Find(strategy);
        continue;
      }
      const std::string chosen =
          config.Choice(strategy, "steps", {{"steps", "steps"}, {"no", "no"}});
      every = chosen == "no" ? 0 : steps;
    }
    return every;
  }

  void Milestones(Section& config) {
    const int64_t evaluate = Every(config, {"eval_strategy", "evaluation_strategy"}, "eval_steps");
    Line(absl::StrCat("evaluate:\n  every_steps: ", evaluate));
    Line(
        absl::StrCat("checkpoint:\n  every_steps: ", Every(config, {"save_strategy"}, "save_steps"),
                     "\n  keep: ", config.Integer("save_total_limit", 1000000)));
    if (config.Flag("load_best_model_at_end", false) && evaluate > 0) Line("  keep_best: 1");
    config.Choice("metric_for_best_model", "eval_loss", {{"eval_loss", ""}, {"loss", ""}});
    config.MustBeOff("greater_is_better", "a lower loss is better; set it to false");
    const std::string output = TextOf(config.Find("output_dir"));
    if (output.empty()) return;
    Note(absl::StrCat("Checkpoints lie in the job's folder (espalier job shows it), not in ",
                      output,
                      ": name it as checkpoint.directory where writable_folders lets you."));
  }

  void Quantization(Section& config) {
    const Json* json = config.Find("quantization");
    config.MustBeOff("load_in_4bit", kNoQuantization);
    config.MustBeOff("load_in_8bit", kNoQuantization);
    if (json == nullptr) return;
    if (!json->is_object()) return config.Wrong("quantization", *json, "an object");
    Section quantization(*json, "quantization.", problems_);
    quantization.MustBeOff("load_in_4bit", kNoQuantization);
    quantization.MustBeOff("load_in_8bit", kNoQuantization);
    for (const char* key : {"bnb_4bit_compute_dtype", "bnb_4bit_quant_type",
                            "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage"}) {
      quantization.Find(key);  // say how, not whether
    }
    quantization.CheckUnknown();
  }

  // What is always so here, or of no concern to a job.
  void NoCounterpart(Section& config) {
    for (const char* key : {"logging_steps",
                            "logging_dir",
                            "logging_strategy",
                            "logging_first_step",
                            "report_to",
                            "run_name",
                            "dataloader_num_workers",
                            "dataloader_pin_memory",
                            "remove_unused_columns",
                            "ddp_find_unused_parameters",
                            "disable_tqdm",
                            "do_train",
                            "do_eval",
                            "overwrite_output_dir",
                            "gradient_checkpointing_kwargs",
                            "use_cpu",
                            "use_mps_device",
                            "push_to_hub",
                            "save_safetensors",
                            "dataset_text_field",
                            "tf32"}) {
      if (config.Find(key) != nullptr) Note(absl::StrCat(key, " has no counterpart."));
    }
  }

  static constexpr char kNoQuantization[] =
      "a model in 4 or 8 bits cannot be had; set it to false, and bf16 to true for half the memory "
      "of fp32";

  const ConvertOptions& options_;
  std::vector<std::string> problems_;
  std::string notes_, text_;
  std::string model_;
  int64_t rows_ = 1;
  int64_t seed_ = 42;
};

}  // namespace

absl::StatusOr<std::string> ConvertTrainerConfig(absl::string_view json,
                                                 const ConvertOptions& options) {
  const Json config = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false,
                                  /*ignore_comments=*/true);
  if (!config.is_object()) {
    return absl::InvalidArgumentError("the configuration is not a JSON object");
  }
  return Converter(options).Convert(config);
}

}  // namespace espalier::ctl
