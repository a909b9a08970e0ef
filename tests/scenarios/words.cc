#include "tests/scenarios/words.h"

#include <functional>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace espalier::scenarios {

Words::Words(const std::string& line) : words_(absl::StrSplit(line, ' ', absl::SkipWhitespace())) {}

void Words::Fail(const std::string& word, const std::string& wanted) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat("'", word, "' is not ", wanted));
}

std::string Words::Text() { return empty() ? "" : words_[next_++]; }

std::string Words::Rest() {
  std::vector<std::string> rest;
  while (!empty()) rest.push_back(Text());
  return absl::StrJoin(rest, " ");
}

absl::Duration Words::Duration() {
  const std::string word = Text();
  absl::Duration value;
  if (!absl::ParseDuration(word, &value)) Fail(word, "a duration such as 3s");
  return value;
}

int64_t Words::Integer() {
  const std::string word = Text();
  int64_t value = 0;
  if (!absl::SimpleAtoi(word, &value)) Fail(word, "a whole number");
  return value;
}

double Words::Real() {
  const std::string word = Text();
  double value = 0;
  if (!absl::SimpleAtod(word, &value)) Fail(word, "a number");
  return value;
}

Words::Setting Words::NextSetting() {
  const std::string word = Text();
  const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
  Setting setting{.key = parts.first, .value = parts.second};
  const bool bad = !setting.value.empty() && !absl::SimpleAtod(setting.value, &setting.number);
  if (bad) Fail(word, "KEY=NUMBER");
  return setting;
}

GenerationKey Words::Key() {
  const std::string word = Text();
  const std::vector<std::string> parts = absl::StrSplit(word, '/');
  int64_t generation = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &generation)) {
    Fail(word, "JOB/GENERATION");
    return {};
  }
  return {JobId(parts[0]), Generation(generation)};
}

Words::Place Words::RankOf() {
  const std::string word = Text();
  const std::vector<std::string> parts = absl::StrSplit(word, '/');
  int64_t rank = 0;
  Place place;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &rank) ||
      !absl::SimpleAtoi(parts[1], &place.world_size)) {
    Fail(word, "RANK/SIZE");
  }
  place.rank = Rank(rank);
  return place;
}

Words::Ending Words::Outcome() {
  static const auto& outcomes =
      *new std::map<std::string, espalier::Outcome>{{"completed", espalier::Outcome::kCompleted},
                                                    {"stopped", espalier::Outcome::kStopped},
                                                    {"failed", espalier::Outcome::kFailed},
                                                    {"unfit", espalier::Outcome::kFailed},
                                                    {"lost", espalier::Outcome::kLost}};
  const std::string word = Text();
  const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits(':', 1));
  const std::pair<std::string, std::string> code = absl::StrSplit(parts.second, '@');
  const auto outcome = outcomes.find(parts.first);
  if (outcome == outcomes.end()) {
    Fail(word, "completed, stopped, lost[:@RANK,...], or failed or unfit[:CODE[@RANK,...]]");
    return {};
  }
  Ending ending{.outcome = outcome->second, .of_their_nodes = parts.first == "unfit"};
  for (int i = 1; !code.first.empty() && absl::StatusCodeToString(ending.code) != code.first; ++i) {
    if (i > 16) Fail(code.first, "a canonical code such as INTERNAL");
    if (i > 16) break;
    ending.code = static_cast<absl::StatusCode>(i);
  }
  for (const absl::string_view rank : absl::StrSplit(code.second, ',', absl::SkipEmpty())) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(rank, &number)) Fail(word, "followed by ranks");
    ending.ranks.push_back(Rank(number));
  }
  return ending;
}

std::vector<int64_t> Words::Integers() {
  std::vector<int64_t> values;
  while (!empty()) values.push_back(Integer());
  return values;
}

namespace {

v1::JobSpec DefaultSpec(const std::string& name) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.set_priority(0);
  spec.mutable_train()->set_steps(100);
  spec.mutable_train()->set_global_batch(8);
  spec.mutable_checkpoint()->set_copies(2);
  spec.mutable_checkpoint()->set_warm_state(true);
  spec.mutable_parallel()->set_min_nodes(1);
  spec.mutable_health()->set_failure_timeout_seconds(2);
  spec.mutable_health()->set_max_restarts(3);
  spec.mutable_health()->set_restart_window_seconds(600);
  spec.mutable_health()->set_restart_backoff_seconds(0.5);
  spec.mutable_launch()->set_mode(v1::LAUNCH_MODE_MPIRUN);
  spec.mutable_launch()->set_timeout_seconds(10);
  return spec;
}

using Setter = std::function<void(v1::JobSpec&, double)>;

const std::map<std::string, Setter>& Setters() {
  static const auto& setters = *new std::map<std::string, Setter>{
      {"priority", [](auto& s, double v) { s.set_priority(static_cast<int32_t>(v)); }},
      {"steps", [](auto& s, double v) { s.mutable_train()->set_steps(static_cast<int64_t>(v)); }},
      {"batch",
       [](auto& s, double v) { s.mutable_train()->set_global_batch(static_cast<int32_t>(v)); }},
      {"min",
       [](auto& s, double v) { s.mutable_parallel()->set_min_nodes(static_cast<int32_t>(v)); }},
      {"max",
       [](auto& s, double v) { s.mutable_parallel()->set_max_nodes(static_cast<int32_t>(v)); }},
      {"failure-timeout",
       [](auto& s, double v) { s.mutable_health()->set_failure_timeout_seconds(v); }},
      {"restarts",
       [](auto& s, double v) { s.mutable_health()->set_max_restarts(static_cast<int32_t>(v)); }},
      {"window", [](auto& s, double v) { s.mutable_health()->set_restart_window_seconds(v); }},
      {"backoff", [](auto& s, double v) { s.mutable_health()->set_restart_backoff_seconds(v); }},
      {"reproducible", [](auto& s, double v) { s.mutable_train()->set_reproducible(v != 0); }},
      {"launch-timeout", [](auto& s, double v) { s.mutable_launch()->set_timeout_seconds(v); }}};
  return setters;
}

absl::Status SetKey(v1::JobSpec& spec, const std::string& key, const std::string& value) {
  if (key == "not" || key == "first") {
    for (const absl::string_view node : absl::StrSplit(value, ',')) {
      key == "not" ? spec.mutable_parallel()->add_exclude_nodes(std::string(node))
                   : spec.mutable_parallel()->add_prefer_nodes(std::string(node));
    }
    return absl::OkStatus();
  }
  if (key == "nodes") {
    for (const auto& node : absl::StrSplit(value, ',')) {
      spec.mutable_parallel()->add_nodes(std::string(node));
    }
    return absl::OkStatus();
  }
  if (key == "shares") {
    for (const auto& part : absl::StrSplit(value, ':')) {
      int32_t share = 0;
      if (!absl::SimpleAtoi(part, &share)) return absl::InvalidArgumentError("shares=A:B:...");
      spec.mutable_parallel()->add_shares(share);
    }
    return absl::OkStatus();
  }
  if (key == "plan" && (value == "fixed" || value == "measured")) {
    spec.mutable_parallel()->set_plan(value == "fixed" ? v1::PLAN_MODE_FIXED
                                                       : v1::PLAN_MODE_MEASURED);
    return absl::OkStatus();
  }
  if (key == "task" && value == "grpo") {
    spec.mutable_train()->set_task(v1::TASK_GRPO);
    return absl::OkStatus();
  }
  if (key == "data") {
    spec.mutable_data()->set_path(value);
    return absl::OkStatus();
  }
  if (key == "mode" && value == "external") {
    spec.mutable_launch()->set_mode(v1::LAUNCH_MODE_EXTERNAL);
    return absl::OkStatus();
  }
  const auto setter = Setters().find(key);
  double number = 0;
  if (setter == Setters().end() || !absl::SimpleAtod(value, &number)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown key or bad value: ", key, "=", value));
  }
  setter->second(spec, number);
  return absl::OkStatus();
}

// JOB:STEP[:HISTORY[:GENERATION]], or "unknown".
absl::Status ReadMemory(const std::string& text, v1::NodeReport& report) {
  if (text == "unknown") {
    report.set_warm_unknown(true);
    return absl::OkStatus();
  }
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  v1::WarmState& warm = *report.add_warm();
  warm.set_job_id(parts[0]);
  int64_t step = 0;
  int64_t history = 0;
  int64_t taken_by = 0;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[1], &step) ||
      (parts.size() > 2 && !absl::SimpleAtoi(parts[2], &history)) ||
      (parts.size() > 3 && !absl::SimpleAtoi(parts[3], &taken_by))) {
    return absl::InvalidArgumentError("memory=JOB:STEP[:HISTORY[:GENERATION]]");
  }
  warm.set_step(step);
  warm.set_history(history);
  warm.set_taken_by(taken_by);
  return absl::OkStatus();
}

// JOB:STEP.
absl::Status ReadHeld(const std::string& text, v1::NodeReport& report) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  int64_t step = 0;
  if (!absl::SimpleAtoi(parts.second, &step)) return absl::InvalidArgumentError("held=JOB:STEP");
  v1::HeldState& held = *report.add_held();
  held.set_job_id(parts.first);
  held.set_step(step);
  return absl::OkStatus();
}

}  // namespace

v1::NodeReport DefaultReport() {
  v1::NodeReport report;
  report.mutable_versions()->set_espalier("1.2.0");
  report.mutable_versions()->set_open_mpi("4.1.4");
  return report;
}

namespace {

absl::Status SetPolicy(v1::NodeSpec& spec, const std::string& key, const std::string& value) {
  if (key == "hours") {
    spec.add_hours(value);
  } else if (key == "on-battery") {
    spec.set_on_battery(value);
  } else if (key == "quiet") {
    spec.add_quiet_hours(value);
  } else if (key == "yields") {
    spec.set_yield_to_user(value == "true");
  } else if (double share = 0; key == "largest" && absl::SimpleAtod(value, &share)) {
    spec.set_largest_share(share);
  } else {
    return absl::InvalidArgumentError(
        "a node has hours=FROM-TO on-battery=WHAT quiet=FROM-TO yields=true largest=PART");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NodeSays> ReadNode(Words& words) {
  NodeSays node;
  node.spec.set_on_heat("leave");
  node.spec.set_least_battery_percent(20);
  node.spec.set_least_disk_free_bytes(1'000'000'000);
  for (const absl::string_view part : absl::StrSplit(words.Text(), ',')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    double speed = 0;
    if (!node.name.empty()) {
      RETURN_IF_ERROR(SetPolicy(node.spec, pair.first, pair.second));
      continue;
    }
    node.name = NodeName(pair.first);
    if (absl::SimpleAtod(pair.second, &speed)) node.spec.set_relative_speed(speed);
  }
  return node;
}

absl::StatusOr<AgentSays> ReadAgent(Words& words) {
  AgentSays says{.report = DefaultReport()};
  while (!words.empty()) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(words.Text(), absl::MaxSplits('=', 1));
    if (pair.first == "espalier") {
      says.report.mutable_versions()->set_espalier(pair.second);
    } else if (pair.first == "open-mpi") {
      says.report.mutable_versions()->set_open_mpi(pair.second);
    } else if (pair.first == "processor") {
      says.report.mutable_resources()->set_processor(pair.second);
    } else if (pair.first == "memory") {
      RETURN_IF_ERROR(ReadMemory(pair.second, says.report));
    } else if (pair.first == "held") {
      RETURN_IF_ERROR(ReadHeld(pair.second, says.report));
    } else if (pair.first == "rehearsal") {
      const std::vector<std::string> parts = absl::StrSplit(pair.second, absl::MaxSplits(':', 1));
      v1::Rehearsal& rehearsal = *says.report.mutable_rehearsal();
      rehearsal.set_job_id(parts[0]);
      rehearsal.set_state(parts.size() == 1     ? v1::REHEARSAL_STATE_RUNNING
                          : parts[1] == "ready" ? v1::REHEARSAL_STATE_READY
                                                : v1::REHEARSAL_STATE_FAILED);
      if (rehearsal.state() == v1::REHEARSAL_STATE_FAILED) rehearsal.set_text(parts[1]);
    } else if (pair.first == "heat") {
      says.report.mutable_condition()->set_heat(
          pair.second == "critical" ? v1::NODE_PRESSURE_CRITICAL : v1::NODE_PRESSURE_NORMAL);
    } else if (double load = 0; pair.first == "load" && absl::SimpleAtod(pair.second, &load)) {
      says.report.mutable_condition()->set_other_load(load);
    } else if (pair.first == "disk") {
      double gigabytes = 0;
      if (!absl::SimpleAtod(pair.second, &gigabytes)) {
        return absl::InvalidArgumentError("disk=GIGABYTES");
      }
      says.report.mutable_resources()->set_disk_free_bytes(static_cast<int64_t>(gigabytes * 1e9));
    } else if (pair.first == "battery") {
      int32_t percent = 0;
      if (!absl::SimpleAtoi(pair.second, &percent)) {
        return absl::InvalidArgumentError("battery=PERCENT");
      }
      says.report.mutable_condition()->set_power(v1::NODE_POWER_BATTERY);
      says.report.mutable_condition()->set_battery_percent(percent);
    } else if (pair.first != "clock" || !absl::ParseDuration(pair.second, &says.clock_ahead)) {
      return absl::InvalidArgumentError(
          "an agent has espalier= open-mpi= processor= clock=TIME memory=JOB:STEP held=JOB:STEP "
          "heat= battery=PERCENT disk=GIGABYTES load=PART rehearsal=JOB:ready");
    }
  }
  return says;
}

absl::StatusOr<v1::JobSpec> ReadSpec(Words& words) {
  v1::JobSpec spec = DefaultSpec(words.Text());
  while (!words.empty()) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(words.Text(), absl::MaxSplits('=', 1));
    const absl::Status status = SetKey(spec, pair.first, pair.second);
    if (!status.ok()) return status;
  }
  return spec;
}

}  // namespace espalier::scenarios
