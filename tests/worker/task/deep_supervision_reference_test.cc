// Six training steps and an evaluation against what the original code of tiny recursive models
// recorded of them: losses, metrics, which slots halt, which data each slot holds, gradients.
#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "tests/worker/support/recorded_trm.h"
#include "worker/model/pretrained.h"
#include "worker/optimizer/optimizer.h"
#include "worker/task/deep_supervision.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr double kTolerance = 1e-4;

// AdamW makes a whole step of a gradient that is hardly more than rounding, which single logits
// show before losses and sums do: weights that differ at first by 6e-8 of themselves, half of what
// fp32 tells apart, end with logits that differ by up to 1.9e-4.
constexpr double kToleranceOfLogitsAfterUpdates = 5e-4;

void ExpectNear(const json& expected, double value, const std::string& what,
                double tolerance = kTolerance) {
  const auto wanted = expected.get<double>();
  EXPECT_NEAR(value, wanted, tolerance * std::max(1.0, std::abs(wanted))) << what;
}

class DeepSupervisionReference : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Parameters::Options options = Parameters::ForTraining(torch::kCPU);
    options.untied_embedding = EmbeddingGradient::kDense;
    absl::StatusOr<PretrainedModel> read =
        LoadPretrained(RecordedTrmFolder(GetParam()), std::move(options));
    ASSERT_TRUE(read.ok()) << read.status();
    parameters_.emplace(std::move(read->parameters));
    config_ = read->config;
    model_ = MakeModel(config_, *parameters_);
    expected_ = RecordedTrm(GetParam());
    table_ = std::make_shared<RecordedBatches>(expected_["batches"]);
    task_.emplace(DeepSupervision::Kind::kText, table_->sequence_length(), table_, table_, 1);
    v1::JobSpec spec;
    spec.mutable_train()->set_global_batch(static_cast<int32_t>(table_->rows()));
    ASSERT_TRUE(slots_.Keep(task_->Keeps(spec, config_)).ok());
  }

  AdamW Optimizer() {
    const json& wanted = expected_["optimizer"]["adamw"];
    v1::OptimizerSpec spec;
    spec.set_beta1(wanted["betas"][0]);
    spec.set_beta2(wanted["betas"][1]);
    spec.set_eps(wanted["eps"]);
    spec.set_weight_decay(wanted["weight_decay"]);
    spec.set_decay_all(true);
    return *AdamW::Create(spec, *parameters_);
  }

  // The samples that the slots have at a step.
  Samples SamplesAt(Step step) {
    std::vector<int64_t> ids(table_->rows());
    std::iota(ids.begin(), ids.end(), step.value() * table_->rows());
    const Samples fresh = *table_->Read(ids);
    return *task_->Continue(step, {0, table_->rows()}, fresh, slots_);
  }

  // Forward and backward of a step, which keeps what the slots keep; the loss.
  double Pass(Step step, const Samples& samples) {
    Transfers transfers{torch::kCPU};
    const SlotRange rows{0, samples.rows()};
    TokenBatch batch = task_->Batch(samples, rows, transfers);
    const torch::Tensor loss = task_->LossSum(*model_, batch, {});
    loss.backward();
    task_->Send(step, samples, rows, batch.results, slots_, transfers);
    task_->Keep(*model_, step, samples, rows, batch.results, slots_);
    return loss.item<double>();
  }

  void ExpectSlots(const json& recorded, const Samples& samples, Step step) {
    const auto slots = slots_.Records<SupervisedSlot>(Step(step.value() + 1));
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      const std::string what = absl::StrCat("step ", step.value(), ", slot ", slot);
      EXPECT_EQ(slots[slot].running == 0, recorded["halted"][slot].get<bool>()) << what;
      EXPECT_EQ(slots[slot].steps, recorded["steps"][slot].get<int64_t>()) << what;
      ExpectNear(recorded["q_halt_logits"][slot], slots[slot].halting, what + ", halting",
                 step == Step(0) ? kTolerance : kToleranceOfLogitsAfterUpdates);
      const auto begin = samples.tokens.begin() + slot * (samples.sequence_length() + 1);
      const std::vector<int64_t> held(begin, begin + samples.sequence_length());
      EXPECT_EQ(held, recorded["inputs_in_use"][slot].get<std::vector<int64_t>>()) << what;
    }
    const SupervisionMetrics metrics = MetricsOf(slots);
    const std::pair<const char*, double> all[] = {{"count", metrics.count},
                                                  {"accuracy", metrics.accuracy},
                                                  {"exact_accuracy", metrics.exact_accuracy},
                                                  {"q_halt_accuracy", metrics.halt_accuracy},
                                                  {"steps", metrics.steps},
                                                  {"lm_loss", metrics.loss},
                                                  {"q_halt_loss", metrics.halt_loss}};
    for (const auto& [name, value] : all) {
      ExpectNear(recorded["metrics"][name], value, absl::StrCat("step ", step.value(), ", ", name));
    }
  }

  // Sums of magnitudes of what slots keep that stay; those that halt keep nothing.
  void ExpectStates(const json& recorded, Step step) {
    const auto slots = slots_.Records<SupervisedSlot>(Step(step.value() + 1));
    const bool all_stay = std::all_of(slots.begin(), slots.end(),
                                      [](const SupervisedSlot& slot) { return slot.running; });
    if (!all_stay) return;
    const torch::Tensor numbers = slots_.Numbers(Step(step.value() + 1))
                                      .narrow(1, 1, -1 + slots_.size().numbers)
                                      .view({table_->rows(), 2, -1})
                                      .abs()
                                      .to(torch::kDouble);
    ExpectNear(recorded["z_H_sum_abs"], numbers.select(1, 0).sum().item<double>(), "high");
    ExpectNear(recorded["z_L_sum_abs"], numbers.select(1, 1).sum().item<double>(), "low");
    ++states_compared_;
  }

  std::optional<Parameters> parameters_;
  DecoderConfig config_;
  std::unique_ptr<Model> model_;
  json expected_;
  std::shared_ptr<RecordedBatches> table_;
  std::optional<DeepSupervision> task_;
  SlotStates slots_;
  int states_compared_ = 0;
};

TEST_P(DeepSupervisionReference, TrainsAsTheOriginalDoes) {
  AdamW optimizer = Optimizer();
  const double scale = 1 / expected_["optimizer"]["loss_divided_by"].get<double>();
  const double rate = expected_["optimizer"]["adamw"]["lr"];
  for (int64_t i = 0; i < static_cast<int64_t>(expected_["steps"].size()); ++i) {
    const json& recorded = expected_["steps"][i];
    const Samples samples = SamplesAt(Step(i));
    ExpectNear(recorded["loss"], Pass(Step(i), samples), absl::StrCat("loss of step ", i));
    ExpectSlots(recorded, samples, Step(i));
    ExpectStates(recorded, Step(i));
    const json norms = recorded.value("grad_norms", json::object());
    for (const auto& [name, norm] : norms.items()) {
      const Parameter* parameter = parameters_->Find(name);
      ASSERT_NE(parameter, nullptr) << name;
      ExpectNear(norm, parameter->leaf.grad().norm().item<double>() * scale, name);
    }
    optimizer.Apply({.learning_rate = rate, .gradient_scale = scale});
  }
  EXPECT_EQ(states_compared_ > 0, config_.recursion->halt_max_steps > 1);
}

// The recorded evaluation follows the six steps.
TEST_P(DeepSupervisionReference, EvaluatesAllSupervisionSteps) {
  AdamW optimizer = Optimizer();
  const double scale = 1 / expected_["optimizer"]["loss_divided_by"].get<double>();
  const double rate = expected_["optimizer"]["adamw"]["lr"];
  for (int64_t i = 0; i < static_cast<int64_t>(expected_["steps"].size()); ++i) {
    Pass(Step(i), SamplesAt(Step(i)));
    optimizer.Apply({.learning_rate = rate, .gradient_scale = scale});
  }
  torch::NoGradGuard no_grad;
  Transfers transfers{torch::kCPU};
  const Samples samples = *table_->Read({0, 1, 2});
  const TokenBatch batch = task_->Batch(samples, {0, 3}, transfers);
  const json& recorded = expected_["eval_after_training_batch0"];
  ExpectNear(recorded.back()["loss"], task_->LossSum(*model_, batch, {}).item<double>(), "last");
  const RecursiveModel& recursive = RecursiveModelOf(*model_);
  RecursiveModel::State state = recursive.Begin(3, batch.inputs.size(1));
  for (size_t step = 0; step < recorded.size(); ++step) {
    state = recursive.Think(batch.inputs, state);
    const torch::Tensor logits = recursive.Logits(state.high)[0][3];
    const json& of_step = recorded[step]["logits_row0_pos3"];
    for (int64_t id = 0; id < logits.size(0); ++id) {
      ExpectNear(of_step[id], logits[id].item<double>(), absl::StrCat("step ", step, ", id ", id),
                 kToleranceOfLogitsAfterUpdates);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, DeepSupervisionReference,
                         testing::Values("trm-chat-1-1-1", "trm-chat-3-2-4", "trm-puzzle-3-4-3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace espalier
