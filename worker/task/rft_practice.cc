#include "worker/task/rft_practice.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/model/decoder.h"
#include "worker/reward/answers.h"
#include "worker/rollout/job_rollouts.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// Prompts that are sampled before what is there is written: so many, or a sixty-fourth of all,
// since all of it is written each time.
constexpr int64_t kBlock = 64;

RolloutPrompt PromptOf(const PromptTable& table, int64_t prompt) {
  return {.id = prompt, .ids = table.ids(prompt), .record = table.record(prompt)};
}

Json ToJson(const RftTest& test) {
  return {
      {"answers", test.answers}, {"accuracy", test.accuracy}, {"answer_rate", test.answer_rate}};
}

double PerSecond(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

}  // namespace

bool RftPractice::leads() const { return place_.context.collective.rank() == Rank(0); }

int64_t RftPractice::BlockSize() const { return std::max(kBlock, inputs_.training->size() / 64); }

absl::StatusOr<bool> RftPractice::Prepare(Step step, const Model& model,
                                          const RolloutAround& around, SlotStates&) {
  if (begun_) {
    ++steps_;
    return true;
  }
  if (!progress_) {
    ASSIGN_OR_RETURN(progress_, LoadRftProgress(place_.context, PosixFileSystem(), place_.folder,
                                                RftRunName(inputs_.spec, inputs_.data_hash)));
    // Also on nodes that have it from another.
    if (progress_->before || progress_->prompts > 0) RETURN_IF_ERROR(KeepProgress());
  }
  const bool sampled = progress_->prompts == inputs_.training->size();
  if (!sampled && step > Step(0)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "what the run learns from was sampled before step 0, and no rank has ", kRftProgressName,
        " of it in its checkpoint folder any more; copy it there from a node that has it, or begin "
        "the job anew"));
  }
  if (inputs_.validation != nullptr && !progress_->before) {
    ASSIGN_OR_RETURN(progress_->before, Test(model, around));
    if (!progress_->before) return false;
    RETURN_IF_ERROR(KeepProgress());
    return false;
  }
  if (sampled) {
    RETURN_IF_ERROR(Begin());
    return true;
  }
  RETURN_IF_ERROR(SampleBlock(model, around));
  return false;
}

absl::Status RftPractice::SampleBlock(const Model& model, const RolloutAround& around) {
  const v1::RolloutSpec& rollout = inputs_.spec.train().rollout();
  const int64_t all = inputs_.training->size();
  const int64_t end = std::min(all, progress_->prompts + BlockSize());
  RolloutOrder order;
  for (int64_t prompt = progress_->prompts; prompt < end; ++prompt) {
    order.prompts.push_back(PromptOf(*inputs_.training, prompt));
  }
  order.samples = rollout.samples();
  order.until_accepted = true;
  order.sample = RolloutSampling(rollout, /*progress=*/0);
  order.seed = rollout.seed();
  ASSIGN_OR_RETURN(std::optional<Rollouts> made, source_->Sample(DecoderOf(model), order, around));
  if (!made) return absl::OkStatus();
  for (Rollout& one : made->all) {
    if (!one.judgement.accepted()) continue;
    progress_->rows.push_back({.prompt = order.prompts[static_cast<size_t>(one.prompt)].id,
                               .sample = one.sample,
                               .ids = std::move(one.ids),
                               .text = std::move(one.text)});
  }
  progress_->prompts = end;
  progress_->samples += made->figures.samples;
  progress_->new_tokens += made->figures.new_tokens;
  progress_->sample_seconds += made->figures.rollout_seconds;
  progress_->verify_seconds += made->figures.reward_seconds;
  if (leads()) {
    LogInfo(absl::StrFormat(
        "sampled %d of %d prompts: %d accepted, %.3g samples a prompt, %.0f tokens/s", end, all,
        progress_->rows.size(), static_cast<double>(progress_->samples) / static_cast<double>(end),
        PerSecond(static_cast<double>(made->figures.new_tokens), made->figures.rollout_seconds)));
  }
  return KeepProgress();
}

absl::Status RftPractice::Begin() {
  if (progress_->rows.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "of ", progress_->samples, " completions of ", progress_->prompts,
        " prompts none was accepted, so there is nothing to learn; raise train.rollout.samples, "
        "or take a model that answers some of them (after fine-tuning it on examples)"));
  }
  RETURN_IF_ERROR(Write("rft.json", RowsAsJson(), Needed::kYes));
  RETURN_IF_ERROR(table_.Fill(*inputs_.training, progress_->rows));
  begun_ = true;
  begun_at_ = place_.context.clock.Monotonic();
  tested_before_ = test_seconds_;
  steps_ = 1;
  return absl::OkStatus();
}

absl::Status RftPractice::KeepProgress() {
  return Write(kRftProgressName, RftProgressToJson(*progress_), Needed::kNo);
}

absl::Status RftPractice::Write(const std::string& name, const std::string& text, Needed needed) {
  return RunTogether(place_.context, [&]() -> absl::Status {
    if (!place_.writes) return absl::OkStatus();
    absl::Status written = MakeDurableDirectory(PosixFileSystem(), place_.folder);
    if (written.ok()) {
      written = WriteFileAtomically(PosixFileSystem(), JoinPath(place_.folder, name), text);
    }
    if (written.ok() || needed == Needed::kYes) return written;
    LogWarning(absl::StrCat(
        name, " could not be written, and the run goes on without: ", written.message()));
    return absl::OkStatus();
  });
}

absl::StatusOr<std::optional<RftTest>> RftPractice::Test(const Model& model,
                                                         const RolloutAround& around) {
  const absl::Duration begin = place_.context.clock.Monotonic();
  const int64_t most = inputs_.spec.evaluate().max_prompts();
  int64_t prompts = inputs_.validation->size();
  if (most > 0) prompts = std::min(prompts, most);
  RolloutOrder order;
  order.moment = {.step = inputs_.spec.train().steps(), .progress = 1};
  for (int64_t prompt = 0; prompt < prompts; ++prompt) {
    order.prompts.push_back(PromptOf(*inputs_.validation, prompt));
  }
  order.sample = GreedySampling();
  ASSIGN_OR_RETURN(const std::optional<Rollouts> made,
                   source_->Sample(DecoderOf(model), order, around));
  if (!made) return std::nullopt;
  AnswerTally tally;
  for (const Rollout& one : made->all) tally.Add(one.judgement);
  test_seconds_ += absl::ToDoubleSeconds(place_.context.clock.Monotonic() - begin);
  const RftTest test{.answers = tally.questions(),
                     .accuracy = tally.accuracy(),
                     .answer_rate = tally.answer_rate()};
  if (leads()) {
    LogInfo(absl::StrFormat("test%s: accuracy %.3f, answer rate %.3f, of %d prompts",
                            begun_ ? "" : " of the model as it began", test.accuracy,
                            test.answer_rate, test.answers));
  }
  return test;
}

absl::StatusOr<std::optional<Practice::Findings>> RftPractice::Evaluate(
    const Model& model, const RolloutAround& around) {
  ASSIGN_OR_RETURN(const std::optional<RftTest> test, Test(model, around));
  if (!test) return std::nullopt;
  if (begun_) RETURN_IF_ERROR(Write("rft-report.json", ReportAsJson(*test), Needed::kNo));
  return Findings{.loss = 1 - test->accuracy,
                  .answers = test->answers,
                  .figures = {{"accuracy", test->accuracy}, {"answer_rate", test->answer_rate}}};
}

// What a record says of them, else the prompt's own text and the record.
std::string RftPractice::RowsAsJson() const {
  std::vector<std::string> lines;
  for (const RftRow& row : progress_->rows) {
    const Json record =
        Json::parse(inputs_.training->record(row.prompt), nullptr, /*allow_exceptions=*/false);
    Json question = record.is_object() ? record.value("question", Json()) : Json();
    if (question.is_null()) {
      question = inputs_.tokenizer->DecodeText(inputs_.training->ids(row.prompt)).value_or("");
    }
    const Json answer = record.is_object() && record.contains("answer") ? record["answer"] : record;
    lines.push_back(Json{std::move(question), answer, row.text}.dump(
        -1, ' ', false, Json::error_handler_t::replace));
  }
  std::string text = "[";
  for (size_t i = 0; i < lines.size(); ++i) absl::StrAppend(&text, i > 0 ? ",\n" : "", lines[i]);
  return text + "]\n";
}

std::string RftPractice::ReportAsJson(const RftTest& after) const {
  const RftProgress& done = *progress_;
  const double learnt = absl::ToDoubleSeconds(place_.context.clock.Monotonic() - begun_at_) -
                        (test_seconds_ - tested_before_);
  const double tokens =
      static_cast<double>(steps_ * inputs_.spec.train().global_batch()) * table_.mean_length();
  Json report{{"prompts", done.prompts},
              {"rows", done.rows.size()},
              {"samples", done.samples},
              {"new_tokens", done.new_tokens},
              {"steps_of_this_process", steps_},
              {"seconds",
               {{"sample", done.sample_seconds},
                {"verify", done.verify_seconds},
                {"fine_tune", learnt},
                {"test", test_seconds_}}},
              {"tokens_per_second",
               {{"sample", PerSecond(static_cast<double>(done.new_tokens), done.sample_seconds)},
                {"fine_tune", PerSecond(tokens, learnt)}}}};
  if (done.before) report["before"] = ToJson(*done.before);
  report["after"] = ToJson(after);
  return report.dump(2) + "\n";
}

}  // namespace espalier
