// `espalier nodes`: every node with its agent, versions, resources, condition and what it does.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/ctl/render.h"

namespace espalier::ctl {
namespace {

using Column = Table::Column;

// A clock that is further off is worth a word.
constexpr double kClockSecondsShown = 2;

Cell OrDash(const std::string& text) { return {text.empty() ? "-" : text}; }

Cell AgentCell(const v1::NodeStatus& node, const View& view) {
  const auto since = [&](int64_t unix_ms) {
    return unix_ms == 0 ? ""
                        : absl::StrCat(" ", DurationText(view.now - absl::FromUnixMillis(unix_ms)));
  };
  switch (node.agent()) {
    case v1::AGENT_STATE_ATTACHED:
      return {absl::StrCat("attached", since(node.agent_since_ms())), Colour::kGreen};
    case v1::AGENT_STATE_SILENT:
      return {absl::StrCat("silent", since(node.agent_heard_ms())), Colour::kRed};
    case v1::AGENT_STATE_GONE:
      return {absl::StrCat("gone", since(node.agent_since_ms())), Colour::kRed};
    default:
      return {"-"};
  }
}

// "5.0.7 (4.1.4 here)" where it differs from espalierd's.
Cell VersionCell(const std::string& theirs, const std::string& ours) {
  const bool differs = !theirs.empty() && !ours.empty() && theirs != ours;
  if (!differs) return OrDash(theirs);
  return {absl::StrCat(theirs, " (", ours, " here)"), Colour::kRed};
}

// "mps good", "mps fails in bf16: attention, or its gradients"; of a processor nothing is tried.
Cell SelfTestCell(const v1::NodeStatus& node) {
  const v1::DeviceTrial& trial = node.report().device();
  if (!trial.error().empty()) return {absl::StrCat("not known: ", trial.error()), Colour::kYellow};
  if (trial.precisions().empty()) return {"-"};
  std::vector<std::string> failed;
  for (const v1::PrecisionTrial& tried : trial.precisions()) {
    if (tried.failed().empty()) continue;
    failed.push_back(absl::StrCat(tried.precision(), ": ", tried.failed()));
  }
  if (failed.empty()) return {absl::StrCat(trial.device(), " good"), Colour::kGreen};
  return {absl::StrCat(trial.device(), " fails in ", absl::StrJoin(failed, "; ")), Colour::kRed};
}

Cell MemoryCell(const v1::NodeStatus& node) {
  const v1::NodeResources& resources = node.report().resources();
  if (resources.memory_bytes() == 0) return {"-"};
  return {absl::StrCat(BytesText(resources.memory_available_bytes()), " of ",
                       BytesText(resources.memory_bytes()))};
}

Cell DiskCell(const v1::NodeStatus& node) {
  const v1::NodeResources& resources = node.report().resources();
  return {resources.has_disk_free_bytes() ? BytesText(resources.disk_free_bytes()) : "-"};
}

void AddPressure(std::vector<std::string>& words, const char* what, v1::NodePressure pressure) {
  if (pressure == v1::NODE_PRESSURE_WARNING) words.push_back(absl::StrCat(what, " warning"));
  if (pressure == v1::NODE_PRESSURE_CRITICAL) words.push_back(absl::StrCat(what, " critical"));
}

// "heat warning, on battery, clock 3h00m ahead"; "good" when there is nothing to say.
Cell ConditionCell(const v1::NodeStatus& node) {
  if (!node.has_report()) return {"-"};
  const v1::NodeCondition& condition = node.report().condition();
  std::vector<std::string> words;
  AddPressure(words, "memory", condition.memory());
  AddPressure(words, "heat", condition.heat());
  if (condition.power() == v1::NODE_POWER_BATTERY) {
    words.push_back(condition.has_battery_percent()
                        ? absl::StrCat("on battery, ", condition.battery_percent(), " %")
                        : "on battery");
  }
  const double ahead = node.clock_ahead_seconds();
  if (std::abs(ahead) > kClockSecondsShown) {
    words.push_back(absl::StrCat("clock ", DurationText(absl::Seconds(std::abs(ahead))),
                                 ahead > 0 ? " ahead" : " behind"));
  }
  if (words.empty()) return {"good"};
  return {absl::StrJoin(words, ", "), Colour::kYellow};
}

// What orders states of jobs by age: of later jobs, whose ids end in higher numbers, and of later
// steps.
std::pair<int64_t, int64_t> Order(const v1::HeldState& held) {
  const std::string& id = held.job_id();
  int64_t number = 0;
  if (!absl::SimpleAtoi(id.substr(id.rfind('-') + 1), &number)) number = 0;
  return {number, held.step()};
}

// "nano-3 at step 120 and 2 more": the states of jobs that it could start from, the newest named.
Cell HoldsCell(const v1::NodeStatus& node) {
  const auto& held = node.report().held();
  const auto newest = std::max_element(
      held.begin(), held.end(), [](const auto& a, const auto& b) { return Order(a) < Order(b); });
  if (newest == held.end()) return {"-"};
  std::string text = absl::StrCat(newest->job_id(), " at step ", newest->step());
  if (held.size() > 1) absl::StrAppend(&text, " and ", held.size() - 1, " more");
  return {text};
}

Cell StateCell(const v1::NodeStatus& node, const View& view) {
  if (!node.set_aside_reason().empty()) {
    return {absl::StrCat("set aside until ", TimeText(node.set_aside_until_ms(), view), ": ",
                         node.set_aside_reason()),
            Colour::kYellow};
  }
  const std::string runs =
      node.job_id().empty() ? std::string() : absl::StrCat("runs ", node.job_id());
  if (!node.unusable_reason().empty()) {
    return {
        absl::StrCat(runs, runs.empty() ? "" : "; ", "gets no job: it ", node.unusable_reason()),
        Colour::kYellow};
  }
  if (!node.spared_reason().empty()) {
    const std::string now = runs.empty() ? "free" : runs;
    return {absl::StrCat(now, "; is spared: it ", node.spared_reason()), Colour::kYellow};
  }
  if (!runs.empty()) return Cell(runs);
  const v1::Rehearsal& rehearsal = node.report().rehearsal();
  if (rehearsal.job_id().empty()) return Cell("free", Colour::kGreen);
  switch (rehearsal.state()) {
    case v1::REHEARSAL_STATE_READY:
      return {absl::StrCat("free; ready for ", rehearsal.job_id()), Colour::kGreen};
    case v1::REHEARSAL_STATE_FAILED:
      return {absl::StrCat("free; cannot train ", rehearsal.job_id(), ": ", rehearsal.text()),
              Colour::kYellow};
    default:
      return {absl::StrCat("free; prepares for ", rehearsal.job_id(),
                           rehearsal.text().empty() ? "" : ": ", rehearsal.text()),
              Colour::kGreen};
  }
}

std::vector<Cell> Row(const v1::NodeStatus& node, const v1::NodeVersions& ours, const View& view) {
  const v1::NodeVersions& versions = node.report().versions();
  const int64_t limit = node.memory_limit_bytes();
  return {{node.name()},
          {node.address()},
          OrDash(node.profile()),
          OrDash(node.device()),
          {limit == 0 ? "machine's" : BytesText(limit)},
          AgentCell(node, view),
          VersionCell(versions.espalier(), ours.espalier()),
          VersionCell(versions.open_mpi(), ours.open_mpi()),
          VersionCell(versions.libtorch(), ours.libtorch()),
          SelfTestCell(node),
          MemoryCell(node),
          DiskCell(node),
          ConditionCell(node),
          HoldsCell(node),
          StateCell(node, view)};
}

}  // namespace

std::string RenderNodes(const v1::ListNodesResponse& response, const View& view) {
  if (response.nodes().empty())
    return "no nodes: the cluster file names none, and none has joined (espalier nodes add)\n";
  const auto right = Table::Align::kRight;
  const std::vector<Column> columns = {{"NODE"},
                                       {"ADDRESS"},
                                       {"PROFILE"},
                                       {"DEVICE"},
                                       {"MEMORY LIMIT", right},
                                       {"AGENT"},
                                       {"ESPALIER"},
                                       {"OPEN MPI"},
                                       {"LIBTORCH"},
                                       {"SELF-TEST"},
                                       {"MEMORY FREE", right},
                                       {"DISK FREE", right},
                                       {"CONDITION"},
                                       {"HOLDS"},
                                       {"STATE"}};
  std::vector<std::vector<Cell>> rows;
  for (const v1::NodeStatus& node : response.nodes()) {
    rows.push_back(Row(node, response.coordinator(), view));
  }
  // A column that says nothing of any node is left out.
  std::vector<size_t> shown;
  for (size_t i = 0; i < columns.size(); ++i) {
    const bool says_something = std::any_of(
        rows.begin(), rows.end(), [&](const std::vector<Cell>& row) { return row[i].text != "-"; });
    if (says_something) shown.push_back(i);
  }
  std::vector<Column> titles;
  for (const size_t i : shown) titles.push_back(columns[i]);
  Table table(std::move(titles));
  for (const std::vector<Cell>& row : rows) {
    std::vector<Cell> cells;
    for (const size_t i : shown) cells.push_back(row[i]);
    table.Add(std::move(cells));
  }
  return table.Render(view);
}

}  // namespace espalier::ctl
