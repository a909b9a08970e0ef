#include <cmath>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/config/model_preset.h"
#include "common/config/recompute.h"
#include "common/config/rules.h"
#include "common/config/yaml_tree.h"

namespace espalier {
namespace {

// The workers check against the layers of a folder's model when they have read it.
constexpr int64_t kMostLayers = 512;

// Collects problems of one job under one place.
class JobChecker {
 public:
  JobChecker(const v1::JobSpec& spec, const std::string& where, Problems& problems)
      : spec_(spec), where_(where), problems_(problems) {}

  void CheckAll() {
    if (!IsName(spec_.name())) {
      Refuse("name is ", Quoted(spec_.name()), "; allowed: ", kNameRule);
    }
    CheckModel();
    CheckTraining();
    CheckPacking();
    if (spec_.train().has_lora()) CheckLora();
    CheckRecursion();
    CheckNodes();
    CheckShares();
    CheckBatch();
    CheckReproducible();
    CheckCheckpoints();
    CheckDeadlines();
    CheckPatience();
  }

 private:
  template <typename... Parts>
  void Refuse(const Parts&... parts) {
    problems_.Add(where_, absl::StrCat(parts...));
  }

  void CheckModel() {
    const v1::ModelSpec& model = spec_.model();
    if (model.has_from()) {
      v1::ModelSpec only_from;
      only_from.set_from(model.from());
      if (model.has_dropout()) only_from.set_dropout(model.dropout());
      if (only_from.ByteSizeLong() != model.ByteSizeLong()) {
        Refuse("model.from takes the whole model from ", Quoted(model.from()),
               "; leave model.preset and the architecture fields out, or leave out model.from");
      }
      CheckRecompute(kMostLayers);
      return;
    }
    const v1::ModelSpec resolved = ResolveModel(model);
    const bool inner = resolved.has_intermediate_size() || IsRecursive(resolved);
    if (!resolved.has_hidden_size() || !inner || !resolved.has_num_hidden_layers() ||
        !resolved.has_num_attention_heads()) {
      Refuse(
          "model is not complete; give model.preset (nano, 17m, 124m, 1b, gpt2), or model.from, or "
          "all of hidden_size, intermediate_size, num_hidden_layers and num_attention_heads");
      return;
    }
    CheckArchitecture(resolved);
    CheckHeads(resolved);
    CheckPositions(resolved);
    CheckRecompute(resolved.num_hidden_layers());
  }

  void CheckRecompute(int64_t layers) {
    const auto recomputed = RecomputedLayers(spec_.train(), layers);
    if (!recomputed.ok()) Refuse(recomputed.status().message());
  }

  void CheckArchitecture(const v1::ModelSpec& model) {
    if (model.architecture() != "gpt2") return;
    const std::pair<const char*, bool> given[] = {
        {"num_key_value_heads", model.num_key_value_heads() != model.num_attention_heads()},
        {"head_dim", model.has_head_dim() &&
                         model.head_dim() * model.num_attention_heads() != model.hidden_size()},
        {"rope_theta", model.has_rope_theta()},
        {"rope_scaling", model.has_rope_scaling()},
        {"attention_bias", model.attention_bias()},
        {"qk_norm", model.qk_norm()},
        {"sliding_window", model.sliding_window() > 0},
    };
    for (const auto& [field, is_given] : given) {
      if (!is_given) continue;
      Refuse("model.", field,
             " is not an option of model.architecture gpt2; leave it out, or take ",
             "architecture llama");
    }
  }

  static bool IsRecursive(const v1::ModelSpec& model) {
    return model.architecture() == "trm" || model.has_recursion();
  }

  // What a recursive model has, and what trains it. The workers look at that of a folder.
  void CheckRecursion() {
    const v1::ModelSpec& model = spec_.model();
    if (model.has_from()) return;
    const bool trains = spec_.train().task() == v1::TASK_TRM;
    if (trains != IsRecursive(model)) {
      Refuse(trains ? "train.task trm trains a recursive model; give model.architecture: trm and "
                      "model.recursion, or another train.task"
                    : "model.recursion is trained by train.task trm; set that, or leave "
                      "model.recursion out");
    }
    if (!IsRecursive(model)) return;
    const std::pair<const char*, bool> given[] = {
        {"model.architecture", model.has_architecture() && model.architecture() != "trm"},
        {"model.num_key_value_heads", model.has_num_key_value_heads()},
        {"model.head_dim", model.has_head_dim()},
        {"model.rope_scaling", model.has_rope_scaling()},
        {"model.tie_word_embeddings", model.tie_word_embeddings()},
        {"model.attention_bias", model.attention_bias()},
        {"model.qk_norm", model.qk_norm()},
        {"model.sliding_window", model.sliding_window() > 0},
        {"model.dropout", model.dropout() > 0},
        {"train.lora", spec_.train().has_lora()},
    };
    for (const auto& [field, is_given] : given) {
      if (is_given) Refuse(field, " is no option of a recursive model; leave it out");
    }
    if (model.recursion().mix_positions() && model.recursion().causal()) {
      Refuse(
          "model.recursion.mix_positions sees the tokens that a causal model is to give; turn it "
          "off for text, or model.recursion.causal for puzzles");
    }
  }

  void CheckHeads(const v1::ModelSpec& model) {
    const int heads = model.num_attention_heads();
    if (!model.has_head_dim()) {
      Refuse("model.hidden_size is ", model.hidden_size(),
             ", not a multiple of model.num_attention_heads, which is ", heads,
             "; change one of them or give model.head_dim");
    } else if (model.head_dim() % 2 != 0 && model.architecture() != "gpt2") {
      Refuse("model.head_dim is ", model.head_dim(),
             "; it must be even, because rotary positions turn pairs");
    }
    if (heads % model.num_key_value_heads() != 0) {
      Refuse("model.num_key_value_heads is ", model.num_key_value_heads(),
             "; it must divide model.num_attention_heads, which is ", heads);
    }
  }

  void CheckPositions(const v1::ModelSpec& model) {
    const int length = spec_.data().sequence_length();
    if (model.has_max_position_embeddings() && length > model.max_position_embeddings()) {
      Refuse("data.sequence_length is ", length, ", longer than model.max_position_embeddings (",
             model.max_position_embeddings(), "); raise that or shorten the sequences");
    }
    const bool sees_both_ways = IsRecursive(model) && !model.recursion().causal();
    if (sees_both_ways && length < model.max_position_embeddings()) {
      Refuse("data.sequence_length is ", length, " and model.max_position_embeddings is ",
             model.max_position_embeddings(),
             ", whose places see each other; leave the latter out, or set it to the former");
    }
    if (!model.has_rope_scaling()) return;
    const v1::RopeScaling& scaling = model.rope_scaling();
    if (scaling.low_freq_factor() >= scaling.high_freq_factor()) {
      Refuse("model.rope_scaling.low_freq_factor is ", scaling.low_freq_factor(),
             "; it must be below high_freq_factor, which is ", scaling.high_freq_factor());
    }
  }

  void CheckTraining() {
    const v1::ScheduleSpec& schedule = spec_.train().schedule();
    // Where the steps follow from train.epochs later, so does the warm-up.
    const double warmup = schedule.warmup_ratio() * static_cast<double>(spec_.train().steps());
    if (schedule.has_warmup_ratio() &&
        static_cast<double>(schedule.warmup_steps()) != std::ceil(warmup)) {
      Refuse("train.schedule.warmup_steps is ", schedule.warmup_steps(), ", and warmup_ratio ",
             schedule.warmup_ratio(), " of the steps is another number; leave one of them out");
    }
    if (spec_.train().has_steps() && schedule.warmup_steps() > spec_.train().steps()) {
      Refuse("train.schedule.warmup_steps is ", schedule.warmup_steps(),
             "; it must not exceed train.steps, which is ", spec_.train().steps());
    }
    if (spec_.parallel().chunk_bytes() % 4 != 0) {
      Refuse("parallel.chunk_bytes is ", spec_.parallel().chunk_bytes(),
             "; it must be a multiple of 4, the size of a gradient value");
    }
  }

  void CheckPacking() {
    if (!spec_.data().packing()) return;
    if (spec_.train().task() != v1::TASK_SFT) {
      Refuse("data.packing has examples share rows, and train.task is not sft: sequences of text ",
             "are full without it; leave it out");
    }
    if (spec_.data().group_by_length()) {
      Refuse("data.packing and data.group_by_length both keep rows from being filled up with ",
             "nothing; leave one of them out");
    }
  }

  void CheckLora() {
    const v1::LoraSpec& lora = spec_.train().lora();
    if (!spec_.model().has_from()) {
      Refuse(
          "train.lora adapts a model that is there, and model.from names none; give model.from, ",
          "or leave out train.lora to train the whole model");
    }
    if (spec_.train().freeze_size() > 0) {
      Refuse(
          "train.freeze and train.lora both say what keeps its values; with train.lora the whole ",
          "model does, so leave out train.freeze");
    }
    if (lora.has_from() &&
        (lora.has_rank() || lora.has_alpha() || lora.targets_size() > 0 || lora.has_rslora())) {
      Refuse("train.lora.from takes rank, alpha, targets and rslora from the adapter ",
             Quoted(lora.from()), "; leave them out, or leave out train.lora.from");
    }
    if (lora.targets_size() > 1 && absl::c_linear_search(lora.targets(), "all-linear")) {
      Refuse("train.lora.targets has 'all-linear' in a list; it stands for every projection, so ",
             "give it alone, or name projections: [q_proj, v_proj]");
    }
  }

  template <typename Names>
  std::set<std::string> CheckNames(const char* path, const Names& names) {
    std::set<std::string> seen;
    for (const std::string& node : names) {
      if (!IsName(node)) Refuse(path, " holds ", Quoted(node), "; allowed: ", kNameRule);
      if (!seen.insert(node).second) Refuse(path, " names ", Quoted(node), " twice");
    }
    return seen;
  }

  void CheckNodes() {
    const v1::ParallelSpec& parallel = spec_.parallel();
    const std::set<std::string> named_nodes = CheckNames("parallel.nodes", parallel.nodes());
    const std::set<std::string> excluded =
        CheckNames("parallel.exclude_nodes", parallel.exclude_nodes());
    for (const std::string& node : named_nodes) {
      if (excluded.count(node) > 0) {
        Refuse("parallel.nodes and parallel.exclude_nodes both name ", Quoted(node),
               "; take it out of one of them");
      }
    }
    for (const std::string& node : CheckNames("parallel.prefer_nodes", parallel.prefer_nodes())) {
      if (excluded.count(node) > 0 || (!named_nodes.empty() && named_nodes.count(node) == 0)) {
        Refuse("parallel.prefer_nodes names ", Quoted(node),
               ", which the job may not use by parallel.nodes and exclude_nodes");
      }
    }
    if (parallel.max_nodes() < parallel.min_nodes()) {
      Refuse("parallel.max_nodes is ", parallel.max_nodes(),
             "; it must be at least parallel.min_nodes, which is ", parallel.min_nodes());
    }
    const int named = parallel.nodes_size();
    if (named > 0 && parallel.max_nodes() > named) {
      Refuse("parallel.nodes names ", named, " nodes, but the job wants up to ",
             parallel.max_nodes(), "; name more, or lower min_nodes and max_nodes");
    }
  }

  // Lists with an entry per rank need a number of ranks that cannot change.
  void CheckPerRank(const char* path, int entries) {
    const v1::ParallelSpec& parallel = spec_.parallel();
    if (parallel.min_nodes() != parallel.max_nodes()) {
      Refuse(path, " has an entry per rank, so parallel.min_nodes (", parallel.min_nodes(),
             ") and max_nodes (", parallel.max_nodes(), ") must be equal");
    } else if (entries != parallel.max_nodes()) {
      Refuse(path, " has ", entries, " entries for ", parallel.max_nodes(),
             " ranks; give one per rank, and say with parallel.min_nodes and max_nodes how many "
             "there are");
    }
  }

  void CheckShares() {
    const v1::ParallelSpec& parallel = spec_.parallel();
    if (spec_.batch().micro_batch_size() > 1) {
      CheckPerRank("batch.micro_batch", spec_.batch().micro_batch_size());
    }
    if (parallel.shares_size() > 0) {
      CheckPerRank("parallel.shares", parallel.shares_size());
      if (parallel.plan() == v1::PLAN_MODE_MEASURED) {
        Refuse("parallel.plan is 'measured', but parallel.shares fixes the plan; leave one out");
      }
      if (absl::c_all_of(parallel.shares(), [](int share) { return share == 0; })) {
        Refuse("parallel.shares are all 0; at least one rank must have a share");
      }
    } else if (spec_.train().global_batch() < parallel.max_nodes()) {
      Refuse("train.global_batch is ", spec_.train().global_batch(), " sequences for up to ",
             parallel.max_nodes(),
             " nodes, so that some would have nothing to do; raise it, lower max_nodes, or give "
             "parallel.shares");
    }
  }

  // What gives other bits for another division of a step.
  void CheckReproducible() {
    if (!spec_.train().reproducible()) return;
    if (spec_.launch().threads() == 0) {
      Refuse(
          "launch.threads is 0, as many as a machine has for each worker, but with "
          "train.reproducible it is the same on all nodes and for good; set launch.threads, to 1 "
          "or "
          "more");
    }
    for (const int32_t size : spec_.batch().micro_batch()) {
      if (size == 1) continue;
      Refuse("batch.micro_batch is ", size,
             ", but with train.reproducible every sequence is a micro-batch of its own; leave "
             "micro_batch out, or train.reproducible");
      break;
    }
    if (spec_.parallel().gradient_dtype() != v1::GRADIENT_DTYPE_FP32) {
      Refuse(
          "parallel.gradient_dtype rounds sums on their way, but with train.reproducible they "
          "travel as 64-bit integers; leave gradient_dtype out, or train.reproducible");
    }
  }

  void CheckBatch() {
    const v1::BatchSpec& batch = spec_.batch();
    if (batch.min_micro_batch() > batch.max_micro_batch()) {
      Refuse("batch.min_micro_batch is ", batch.min_micro_batch(),
             "; it must be at most batch.max_micro_batch, which is ", batch.max_micro_batch());
    }
  }

  void CheckCheckpoints() {
    if (spec_.checkpoint().keep_best() > 0 && spec_.evaluate().every_steps() == 0) {
      Refuse("checkpoint.keep_best is ", spec_.checkpoint().keep_best(),
             ", but evaluate.every_steps is 0, so that no checkpoint but the last has a validation "
             "loss; set evaluate.every_steps, or keep_best to 0");
    }
  }

  // A rank that hangs in a launch is found first.
  void CheckDeadlines() {
    const double failure = spec_.health().failure_timeout_seconds();
    const double launch = spec_.launch().timeout_seconds();
    if (launch >= 2 * failure) return;
    Refuse("launch.timeout_seconds is ", launch, "; it must be at least twice ",
           "health.failure_timeout_seconds, which is ", failure, ": set it to ", 2 * failure);
  }

  void CheckPatience() {
    const int32_t patience = spec_.evaluate().patience();
    const int32_t plateau = spec_.train().schedule().plateau_patience();
    if (patience > 0 && plateau >= patience) {
      Refuse("train.schedule.plateau_patience is ", plateau, " and evaluate.patience is ", patience,
             ": the job would end before a lower learning rate could help; make the first smaller, "
             "or one of them 0");
    }
    if (spec_.evaluate().every_steps() > 0 || (patience == 0 && plateau == 0)) return;
    Refuse(plateau > 0 ? "train.schedule.plateau_patience" : "evaluate.patience",
           " counts evaluations, but evaluate.every_steps is 0, so that there is none before the "
           "end; set evaluate.every_steps, or this to 0");
  }

  const v1::JobSpec& spec_;
  const std::string& where_;
  Problems& problems_;
};

}  // namespace

void CheckJobRules(const v1::JobSpec& spec, const std::string& where, Problems& problems) {
  JobChecker(spec, where, problems).CheckAll();
  CheckRewardRules(spec, where, problems);
}

}  // namespace espalier
