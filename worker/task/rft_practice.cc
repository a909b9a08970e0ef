#include "worker/task/rft_practice.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/model/decoder.h"
#include "worker/reward/answers.h"
#include "worker/rollout/job_rollouts.h"
#include "worker/rollout/rollout_bytes.h"
#include "worker/task/run_name.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// While no folder takes what was sampled, and later, when one still lacks it.
constexpr absl::Duration kRetryInterval = absl::Seconds(2);
constexpr int64_t kRetrySteps = 16;
constexpr char kTestName[] = "rft.test.json";

RolloutPrompt PromptOf(const PromptTable& table, int64_t prompt) {
  return {.id = prompt, .ids = table.ids(prompt), .record = table.record(prompt)};
}

Json ToJson(const RftTest& test) {
  return {{"answers", test.answers},
          {"accuracy", test.accuracy()},
          {"answer_rate", test.answer_rate()}};
}

// As a TestProgress has it.
std::string WriteTest(const RftTest& test) {
  return Json{{"right", test.right}, {"answered", test.answered}}.dump();
}
RftTest ParseTest(const TestProgress& kept) {
  const Json json = Json::parse(kept.so_far, nullptr, /*allow_exceptions=*/false);
  if (kept.reach == 0 || !json.is_object()) return {};
  return {.answers = kept.reach,
          .right = json.value("right", int64_t{0}),
          .answered = json.value("answered", int64_t{0})};
}

double PerSecond(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

}  // namespace

RftPractice::RftPractice(const PracticePlace& place, const RftInputs& inputs, RftTable& table,
                         std::unique_ptr<RolloutSource> source)
    : place_(place),
      inputs_(inputs),
      table_(table),
      source_(std::move(source)),
      paced_(place.context, inputs.spec.train().rollout(), *source_),
      folder_(place),
      limits_{.prompts = inputs.training->size(),
              .samples = inputs.spec.train().rollout().samples()},
      learns_from_(place.learns_from) {}

int64_t RftPractice::prompts_of_test() const {
  if (inputs_.validation == nullptr) return 0;
  const int64_t all = inputs_.validation->size(), most = inputs_.spec.evaluate().max_prompts();
  return most > 0 ? std::min(all, most) : all;
}

absl::StatusOr<bool> RftPractice::Prepare(Step step, const Model& model,
                                          const RolloutAround& around, SlotStates&) {
  kept_of_test_ = 0;  // what counts from here on is the step
  if (begun_) {
    if (++steps_ % kRetrySteps == 0) RETURN_IF_ERROR(KeepAll().status());
    return true;
  }
  if (!progress_) RETURN_IF_ERROR(Load());
  if (!sampled() && step > Step(0)) {
    std::vector<int32_t> all(static_cast<size_t>(place_.context.collective.world_size()));
    std::iota(all.begin(), all.end(), 0);
    return OfTheirNodes(WithFailedRanks(
        absl::FailedPreconditionError(absl::StrCat(
            "what the run learns from was sampled before step 0, and no rank has the ",
            kRftProgressName,
            " of it in its checkpoint folder; start a node that has it, or copy it from there")),
        all));
  }
  if (step == Step(0) && progress_->before.answers < prompts_of_test()) {
    ASSIGN_OR_RETURN(const bool tested, TestNext(model, around, progress_->before));
    if (tested) RETURN_IF_ERROR(KeepProgress());
    return false;
  }
  if (!sampled()) {
    RETURN_IF_ERROR(SampleNext(model, around));
    return false;
  }
  ASSIGN_OR_RETURN(const bool kept, KeepAll());
  if (!kept && step == Step(0)) {  // once a step is committed nobody could sample it again
    RETURN_IF_ERROR(RunTogether(place_.context, [this] {
      place_.context.clock.Sleep(kRetryInterval);
      return absl::OkStatus();
    }));
    return false;
  }
  RETURN_IF_ERROR(Begin());
  steps_ = 1;
  return true;
}

absl::StatusOr<std::optional<Rollouts>> RftPractice::Sample(const Model& model,
                                                            const RolloutOrder& order,
                                                            const RolloutAround& around) {
  RolloutAround with = around;
  if (progress_) with.kept = progress_->reach();
  return paced_.Sample(DecoderOf(model), order, with);
}

absl::Status RftPractice::SampleNext(const Model& model, const RolloutAround& around) {
  const v1::RolloutSpec& rollout = inputs_.spec.train().rollout();
  const std::vector<RftAsk> asks = NextAsks(*progress_, limits_, paced_.order_size());
  RolloutOrder order;
  for (const RftAsk& ask : asks) {
    RolloutPrompt& prompt = order.prompts.emplace_back(PromptOf(*inputs_.training, ask.prompt));
    prompt.first = ask.first;
    prompt.samples = ask.samples;
  }
  order.sample = RolloutSampling(rollout, /*progress=*/0);
  order.seed = rollout.seed();
  ASSIGN_OR_RETURN(std::optional<Rollouts> made, Sample(model, order, around));
  if (!made) return absl::OkStatus();
  TakeUp(asks, limits_, std::move(made->all), *progress_);
  const RolloutFigures& figures = made->figures;
  progress_->samples += figures.samples;
  progress_->new_tokens += figures.new_tokens;
  progress_->sample_seconds += figures.rollout_seconds;
  progress_->verify_seconds += figures.reward_seconds;
  if (leads()) {
    LogInfo(absl::StrFormat(
        "sampled %d of %d prompts: %d accepted, %.3g samples a prompt, %.0f tokens/s",
        progress_->done(), limits_.prompts, progress_->rows.size(),
        static_cast<double>(progress_->samples) / static_cast<double>(progress_->prompts),
        PerSecond(static_cast<double>(figures.new_tokens), figures.rollout_seconds)));
  }
  return KeepProgress();
}

absl::Status RftPractice::Load() {
  std::string content;
  // Behind the first step the rows alone say whose they are.
  if (place_.learns_from == 0) {
    ASSIGN_OR_RETURN(content, SharedModelContent(place_.context, inputs_.spec));
  }
  ASSIGN_OR_RETURN(progress_, LoadRftProgress(place_.context, PosixFileSystem(), place_.folder,
                                              RunName(inputs_.spec, inputs_.data_hash, content),
                                              place_.learns_from));
  // Also in folders that lack it.
  return progress_->reach() > 0 ? KeepProgress() : absl::OkStatus();
}

absl::Status RftPractice::Begin() {
  if (progress_->rows.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "of ", progress_->samples, " completions of ", progress_->prompts,
        " prompts none was accepted, so there is nothing to learn; raise train.rollout.samples, "
        "or take a model that answers some of them (after fine-tuning it on examples)"));
  }
  RETURN_IF_ERROR(RunTogether(place_.context, [this] {
    learns_from_ = HashOf(progress_->rows);
    return table_.Fill(*inputs_.training, progress_->rows);
  }));
  begun_ = true;
  begun_at_ = place_.context.clock.Monotonic();
  tested_before_ = test_seconds_;
  return absl::OkStatus();
}

absl::Status RftPractice::KeepProgress() {
  const absl::Duration begin = place_.context.clock.Monotonic();
  std::string head;
  PracticeFolder::Content content{.name = kRftProgressName};
  content.text = [&] {
    std::string text = RftProgressToJson(*progress_);
    head = RftProgressHead(text);
    return text;
  };
  // What steps learn from is the one there is to be, however far others have come.
  if (learns_from_ == 0) {
    content.may_replace = [&](const std::string& path) {
      return CheckNoFurther(PosixFileSystem(), path, *progress_, {head, written_});
    };
  }
  ASSIGN_OR_RETURN(const PracticeFolder::Written written, folder_.Write(content));
  have_progress_ = written.has;
  written_ = head;
  if (written.mine) kept_ = progress_->reach();
  paced_.AllowFor(absl::ToDoubleSeconds(place_.context.clock.Monotonic() - begin));
  return absl::OkStatus();
}

absl::StatusOr<bool> RftPractice::KeepAll() {
  if (have_progress_ != Has::kAll) RETURN_IF_ERROR(KeepProgress());
  if (have_rows_ != Has::kAll) {
    ASSIGN_OR_RETURN(const PracticeFolder::Written written,
                     folder_.Write({.name = "rft.json", .text = [this] { return RowsAsJson(); }}));
    have_rows_ = written.has;
  }
  return have_progress_ != Has::kNone && have_rows_ != Has::kNone;
}

std::string RftPractice::name_of_test() const {
  return TestName(inputs_.spec, inputs_.data_hash, absl::StrCat(learns_from_));
}

// The model as it began is tested before anything says what it learns from.
absl::Status RftPractice::LoadTest(int64_t step) {
  tested_step_ = step;
  test_.emplace();
  kept_of_test_ = 0;
  if (!begun_) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TestProgress kept,
                   LoadTestProgress(place_, kTestName, name_of_test(), step));
  test_ = ParseTest(kept);
  return test_->answers > 0 ? KeepTest(step) : absl::OkStatus();
}

absl::Status RftPractice::KeepTest(int64_t step) {
  if (!begun_) return absl::OkStatus();
  const TestProgress kept{
      .of = name_of_test(), .step = step, .reach = test_->answers, .so_far = WriteTest(*test_)};
  ASSIGN_OR_RETURN(const bool mine, WriteTestProgress(folder_, kTestName, kept));
  if (mine) kept_of_test_ = test_->answers;
  return absl::OkStatus();
}

absl::StatusOr<bool> RftPractice::TestNext(const Model& model, const RolloutAround& around,
                                           RftTest& test) {
  const absl::Duration begin = place_.context.clock.Monotonic();
  const int64_t end = std::min(prompts_of_test(), test.answers + paced_.order_size());
  RolloutOrder order;
  order.moment = {.step = inputs_.spec.train().steps(), .progress = 1};
  for (int64_t prompt = test.answers; prompt < end; ++prompt) {
    order.prompts.push_back(PromptOf(*inputs_.validation, prompt));
  }
  order.sample = GreedySampling();
  ASSIGN_OR_RETURN(const std::optional<Rollouts> made, Sample(model, order, around));
  if (!made) return false;
  AnswerTally tally;
  for (const Rollout& one : made->all) tally.Add(one.judgement);
  test.answers += tally.questions();
  test.right += tally.right();
  test.answered += tally.answered();
  test_seconds_ += absl::ToDoubleSeconds(place_.context.clock.Monotonic() - begin);
  if (leads() && test.answers == prompts_of_test()) {
    LogInfo(absl::StrFormat("test%s: accuracy %.3f, answer rate %.3f, of %d prompts",
                            around.step == 0 ? " of the model as it began" : "", test.accuracy(),
                            test.answer_rate(), test.answers));
  }
  return true;
}

absl::StatusOr<std::optional<Practice::Findings>> RftPractice::Evaluate(
    const Model& model, const RolloutAround& around) {
  // As at the end of a run whose last steps were made by others.
  if (!begun_ && around.step > 0) {
    if (!progress_) RETURN_IF_ERROR(Load());
    if (sampled()) RETURN_IF_ERROR(Begin());
  }
  if (begun_) RETURN_IF_ERROR(KeepAll().status());
  if (!test_ || tested_step_ != around.step) RETURN_IF_ERROR(LoadTest(around.step));
  while (test_->answers < prompts_of_test()) {
    ASSIGN_OR_RETURN(const bool tested, TestNext(model, around, *test_));
    if (!tested) return std::nullopt;
    RETURN_IF_ERROR(KeepTest(around.step));
    if (test_->answers == prompts_of_test()) break;
    if (!around.in_one_go) return std::nullopt;
    if (around.got_on) around.got_on();
  }
  const RftTest test = *test_;
  test_.reset();
  if (begun_) {
    const auto report = [&] { return ReportAsJson(test); };
    RETURN_IF_ERROR(folder_.Write({.name = "rft-report.json", .text = report}).status());
  }
  return Findings{.loss = 1 - test.accuracy(),
                  .answers = test.answers,
                  .figures = {{"accuracy", test.accuracy()}, {"answer_rate", test.answer_rate()}}};
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
  if (done.before.answers > 0) report["before"] = ToJson(done.before);
  report["after"] = ToJson(after);
  return report.dump(2) + "\n";
}

}  // namespace espalier
