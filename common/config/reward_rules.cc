// What the tasks that learn from rewards, grpo and rft, and from preferences, dpo, need of a job
// beside what all do.
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/field_rule.h"
#include "common/config/rules.h"
#include "common/config/yaml_reader.h"
#include "common/config/yaml_tree.h"
#include "google/protobuf/text_format.h"

namespace espalier {
namespace {

using google::protobuf::FieldDescriptor;

std::string ValueText(const v1::VerifierSpec& spec, const FieldDescriptor& field) {
  std::string text;
  google::protobuf::TextFormat::PrintFieldValueToString(spec, &field, -1, &text);
  return text;
}

class RewardChecker {
 public:
  RewardChecker(const v1::JobSpec& spec, const std::string& where, Problems& problems)
      : spec_(spec), train_(spec.train()), where_(where), problems_(problems) {}

  void CheckAll() {
    const bool grpo = train_.task() == v1::TASK_GRPO, rft = train_.task() == v1::TASK_RFT;
    CheckSection("rollout", train_.has_rollout(), grpo || rft, "grpo and rft");
    CheckSection("verifier", train_.has_verifier(), grpo || rft, "grpo and rft");
    CheckSection("grpo", train_.has_grpo(), grpo, "grpo");
    if (train_.has_verifier()) CheckVerifier();
    if (grpo) CheckGrpo();
    if (grpo || rft) CheckRoom();
    const bool dpo = train_.task() == v1::TASK_DPO;
    CheckSection("dpo", train_.has_dpo(), dpo, "dpo");
    if (dpo) CheckDpo();
  }

 private:
  template <typename... Parts>
  void Refuse(const Parts&... parts) {
    problems_.Add(where_, absl::StrCat(parts...));
  }

  void CheckSection(const char* name, bool given, bool used, const char* tasks) {
    if (given && !used) {
      Refuse("train.", name, " is of train.task ", tasks, "; leave it out, or set train.task");
    }
    if (!given && used && absl::string_view(name) == "verifier") {
      Refuse("train.verifier is missing: completions are judged by it; give its kind (wordle, ",
             "units, arithmetic), or kind: external with the command of a program of your own");
    }
  }

  void CheckVerifier() {
    const v1::VerifierSpec& verifier = train_.verifier();
    if ((verifier.kind() == "external") != (verifier.command_size() > 0)) {
      Refuse("train.verifier.command is the program of kind external, and of no other; give both, ",
             "or neither");
    }
    if (spec_.evaluate().games() > 0 && verifier.kind() != "wordle") {
      Refuse("evaluate.games is ", spec_.evaluate().games(), ", and there are games of verifier ",
             "wordle alone; set it to 0");
    }
    CheckKindOfSettings(verifier);
  }

  // A default counts as not given: specs have all of them filled in.
  void CheckKindOfSettings(const v1::VerifierSpec& verifier) {
    static const auto& of_wordle =
        *new std::set<std::string>{"words", "secrets", "rewards", "information_from_step"};
    v1::VerifierSpec defaults;
    defaults.set_kind(verifier.kind());
    FillDefaultValues(defaults);
    std::vector<const FieldDescriptor*> given;
    verifier.GetReflection()->ListFields(verifier, &given);
    for (const FieldDescriptor* field : given) {
      const std::string name = NameOf(*field);
      if (name == "kind" || field->is_repeated()) continue;  // of command see above
      const char* kind = of_wordle.count(name) > 0 ? "wordle" : "external";
      const std::string value = ValueText(verifier, *field);
      if (kind == verifier.kind() || value == ValueText(defaults, *field)) continue;
      Refuse("train.verifier.", name, " is ", value, ", and it is of kind ", kind,
             "; train.verifier.kind is ", Quoted(verifier.kind()), ": leave ", name,
             " out, or set kind to ", kind);
    }
  }

  void CheckGrpo() {
    const v1::RolloutSpec& rollout = train_.rollout();
    if (rollout.samples() < 2 || train_.global_batch() % rollout.samples() != 0) {
      Refuse("train.rollout.samples is ", rollout.samples(), " and train.global_batch is ",
             train_.global_batch(), "; completions are compared with others of their prompt, so ",
             "samples is 2 or more and divides global_batch");
    }
    if (train_.has_epochs() && train_.grpo().updates_per_rollout() > 1) {
      Refuse("train.epochs counts steps that sample, and with train.grpo.updates_per_rollout ",
             train_.grpo().updates_per_rollout(), " one in as many does; give train.steps instead");
    }
    if (train_.grpo().kl() > 0 && !train_.has_lora()) {
      Refuse("train.grpo.kl is ", train_.grpo().kl(), ", the weight of the divergence from the ",
             "model without its adapters, and there are none; give train.lora, or set kl to 0");
    }
    if (train_.grpo().kl() > 0 && train_.lora().has_from()) {
      Refuse("train.grpo.kl is ", train_.grpo().kl(),
             ", and without its adapters the model is not ",
             "the one that it begins with, since these come from train.lora.from; merge them ",
             "(espalier export --merge) and give the result as model.from, or set kl to 0");
    }
  }

  void CheckDpo() {
    if (!train_.has_lora()) {
      Refuse("train.task dpo measures against the model without its adapters, and there are none; ",
             "give train.lora");
    }
    if (train_.lora().has_from()) {
      Refuse("train.task dpo measures against the model without its adapters, and that is not the ",
             "one that it begins with, since these come from train.lora.from; merge them ",
             "(espalier export --merge) and give the result as model.from");
    }
  }

  void CheckRoom() {
    const int32_t room = spec_.data().sequence_length();
    if (train_.rollout().max_new_tokens() <= room) return;
    Refuse("train.rollout.max_new_tokens is ", train_.rollout().max_new_tokens(),
           "; prompt and completion have room for data.sequence_length tokens, which is ", room);
  }

  const v1::JobSpec& spec_;
  const v1::TrainSpec& train_;
  const std::string& where_;
  Problems& problems_;
};

}  // namespace

void AddTaskSections(v1::TrainSpec& train) {
  if (train.task() == v1::TASK_GRPO) {
    train.mutable_grpo();
    train.mutable_rollout();
  } else if (train.task() == v1::TASK_RFT) {
    train.mutable_rollout();
  } else if (train.task() == v1::TASK_DPO) {
    train.mutable_dpo();
  }
}

void CheckRewardRules(const v1::JobSpec& spec, const std::string& where, Problems& problems) {
  RewardChecker(spec, where, problems).CheckAll();
}

}  // namespace espalier
