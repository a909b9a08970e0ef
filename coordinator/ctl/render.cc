#include "coordinator/ctl/render.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace espalier::ctl {
namespace {

// Characters of UTF-8 text: bytes that do not continue one.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

using Column = Table::Column;
constexpr Table::Align kRight = Table::Align::kRight;

std::string StepsText(const v1::JobStatus& status) {
  return absl::StrCat(status.step(), "/", status.total_steps());
}

std::string EtaText(const v1::JobStatus& status) {
  return status.has_eta_seconds() ? DurationText(absl::Seconds(status.eta_seconds())) : "-";
}

std::string RateText(double tokens_per_second) {
  return tokens_per_second > 0 ? CountText(tokens_per_second) : "-";
}

std::string Since(int64_t unix_ms, const View& view) {
  return unix_ms == 0 ? "-" : DurationText(view.now - absl::FromUnixMillis(unix_ms));
}

// "label      value", with the values of all lines in one column.
void AddLine(std::string& out, absl::string_view label, absl::string_view value) {
  absl::StrAppend(&out, absl::StrFormat("%-16s", label), Printable(value), "\n");
}

std::string CheckpointText(const v1::CheckpointReport& report) {
  const std::string seconds = DurationText(absl::Seconds(report.seconds()));
  if (!report.error().empty()) {
    return absl::StrCat("FAILED at step ", report.step(), ": ", report.error());
  }
  return absl::StrCat("step ", report.step(), ", ", BytesText(report.bytes()), " in ", seconds,
                      report.path().empty() ? "" : ", ", report.path());
}

// "accuracy 0.9375, steps 3.5", where there are any.
void AddFigures(std::string& out, absl::string_view label,
                const google::protobuf::RepeatedPtrField<v1::TaskFigure>& figures) {
  if (figures.empty()) return;
  const auto append = [](std::string* text, const v1::TaskFigure& figure) {
    absl::StrAppendFormat(text, "%s %.4g", figure.name(), figure.value());
  };
  AddLine(out, label, absl::StrJoin(figures, ", ", append));
}

void AddTraining(std::string& out, const v1::JobStatus& status) {
  AddLine(out, "steps", StepsText(status));
  AddLine(out, "loss", LossText(status.loss()));
  if (status.has_validation_loss()) {
    AddLine(
        out, "validation loss",
        absl::StrCat(LossText(status.validation_loss()), " after step ", status.validation_step()));
  }
  AddFigures(out, "last step", status.figures());
  AddFigures(out, "last evaluation", status.evaluation_figures());
  AddLine(out, "tokens/s", RateText(status.tokens_per_second()));
  AddLine(out, "time left", EtaText(status));
  if (status.learning_rate() > 0) {
    AddLine(out, "learning rate", absl::StrFormat("%.3g", status.learning_rate()));
    AddLine(out, "gradient norm", absl::StrFormat("%.4g", status.gradient_norm()));
  }
  if (!status.warnings().empty()) {
    AddLine(out, "warnings", absl::StrJoin(status.warnings(), ", "));
  }
  if (status.skipped_steps() > 0) {
    AddLine(out, "skipped steps",
            absl::StrCat(status.skipped_steps(),
                         " (without an update: nothing to learn from, or no finite gradient)"));
  }
}

// Sequences of a step, by how many of them a micro-batch holds, and their share of the global
// batch.
std::string ShareText(const v1::RankStatus& rank, const v1::JobStatus& status) {
  int total = 0;
  for (int sequences : status.plan().sequences()) total += sequences;
  std::string text = absl::StrCat(rank.shard());
  const int micro_batch = rank.last_step().micro_batch();
  if (micro_batch > 0) absl::StrAppend(&text, " by ", micro_batch);
  if (total > 0) absl::StrAppendFormat(&text, " (%.0f %%)", 100.0 * rank.shard() / total);
  return text;
}

std::string MemoryText(const v1::RankStatus& rank) {
  if (rank.memory_bytes() == 0) return "-";
  const v1::StepReport& step = rank.last_step();
  std::string text =
      absl::StrCat(BytesText(rank.memory_bytes()), ", peak ", BytesText(rank.memory_peak_bytes()));
  if (step.memory_limit_bytes() > 0) {
    absl::StrAppend(&text, " of ", BytesText(step.memory_limit_bytes()));
  }
  return text;
}

}  // namespace

std::string RenderJobs(const v1::ListJobsResponse& response, const View& view) {
  if (response.jobs().empty()) return "no jobs; submit one: espalier submit FILE\n";
  Table table({Column{"ID"}, Column{"NAME"}, Column{"STATE"}, Column{"STEP", kRight},
               Column{"LOSS", kRight}, Column{"TOKENS/S", kRight}, Column{"LEFT", kRight},
               Column{"SINCE", kRight}, Column{"REASON"}});
  for (const v1::JobStatus& job : response.jobs()) {
    table.Add({job.id(),
               job.name(),
               {StateText(job.state()), ColourOf(job.state())},
               StepsText(job),
               LossText(job.loss()),
               RateText(job.tokens_per_second()),
               EtaText(job),
               Since(job.state_since_ms(), view),
               job.reason()});
  }
  return table.Render(view);
}

std::string RenderRanks(const v1::JobStatus& status, int most, const View& view) {
  if (status.ranks().empty()) return "";
  Table table({Column{"RANK", kRight}, Column{"NODE"}, Column{"DEVICE"}, Column{"SHARE", kRight},
               Column{"PHASE"}, Column{"STEP", kRight}, Column{"STEP TIME", kRight},
               Column{"MEMORY"}});
  const int shown = std::min(most, status.ranks_size());
  for (int i = 0; i < shown; ++i) {
    const v1::RankStatus& rank = status.ranks(i);
    const double seconds = rank.last_step().step_seconds();
    table.Add({absl::StrCat(rank.rank()), rank.node(), rank.device().empty() ? "-" : rank.device(),
               ShareText(rank, status),
               rank.attached() ? Cell(PhaseText(rank.phase())) : Cell("absent", Colour::kRed),
               absl::StrCat(rank.step()), seconds > 0 ? absl::StrFormat("%.3fs", seconds) : "-",
               MemoryText(rank)});
  }
  std::string out = table.Render(view, 2);
  if (shown < status.ranks_size()) {
    absl::StrAppend(&out, "  and ", status.ranks_size() - shown, " more ranks\n");
  }
  return out;
}

namespace {

std::string SecondsText(double seconds) {
  return seconds > 0 ? absl::StrFormat("%.4gs", seconds) : "-";
}

Table PlanTable(const v1::JobStatus& status) {
  Table table({Column{"RANK", kRight}, Column{"NODE"}, Column{"SHARE", kRight},
               Column{"PART", kRight}, Column{"CONSTANT", kRight}, Column{"A SEQUENCE", kRight},
               Column{"PREDICTED", kRight}, Column{"LAST STEP", kRight}});
  const v1::ShardPlan& plan = status.plan();
  int total = 0;
  for (int sequences : plan.sequences()) total += sequences;
  for (int i = 0; i < plan.sequences_size(); ++i) {
    const bool runs = i < status.ranks_size();
    const v1::RankStatus& rank = runs ? status.ranks(i) : v1::RankStatus::default_instance();
    const v1::RankSpeed& speed = rank.speed();
    table.Add({absl::StrCat(i), runs ? rank.node() : "-", absl::StrCat(plan.sequences(i)),
               absl::StrFormat("%.1f %%", 100.0 * plan.sequences(i) / total),
               rank.has_speed() ? absl::StrFormat("%.4gs", speed.constant_seconds()) : "-",
               SecondsText(speed.seconds_per_sequence()), SecondsText(speed.predicted_seconds()),
               SecondsText(speed.measured_seconds())});
  }
  return table;
}

std::string RenderPlan(const v1::JobStatus& status, const View& view) {
  const v1::ShardPlan& plan = status.plan();
  std::string out = "\nshard plan\n";
  if (plan.sequences().empty()) return out + "  none yet: the job has not been launched\n";
  absl::StrAppend(&out, "  number ", plan.number(), ", from step ", plan.from_step());
  if (plan.decided_ms() > 0) {
    absl::StrAppend(&out, ", since ", TimeText(plan.decided_ms(), view), " (",
                    Since(plan.decided_ms(), view), ")");
  }
  absl::StrAppend(&out, "\n", PlanTable(status).Render(view, 2));
  if (status.has_imbalance()) {
    absl::StrAppendFormat(&out, "  imbalance: the latest rank takes %.1f %% longer than the mean\n",
                          100 * status.imbalance());
  }
  absl::StrAppend(&out, "  because: ", Printable(plan.reason()), "\n");
  return out;
}

}  // namespace

std::string RenderJob(const v1::JobStatus& status, Detail detail, const View& view) {
  std::string out;
  AddLine(out, "job", status.id());
  AddLine(out, "name", status.name());
  absl::StrAppend(&out, absl::StrFormat("%-16s", "state"),
                  Paint(StateText(status.state()), ColourOf(status.state()), view), " for ",
                  Since(status.state_since_ms(), view), "\n");
  AddLine(out, "reason", status.reason());
  AddLine(out, "submitted", TimeText(status.submitted_ms(), view));
  AddLine(out, "priority", absl::StrCat(status.priority()));
  AddLine(out, "generation", absl::StrCat(status.generation()));
  AddLine(out, "restarts", absl::StrCat(status.restarts()));
  AddTraining(out, status);
  AddLine(out, "checkpoints in", status.checkpoint_directory());
  if (status.has_last_checkpoint()) {
    AddLine(out, "last checkpoint", CheckpointText(status.last_checkpoint()));
  }
  if (!status.state_holders().empty()) AddLine(out, "newest state on", status.state_holders());
  if (!status.ranks().empty()) {
    absl::StrAppend(&out, "\nranks\n", RenderRanks(status, status.ranks_size(), view));
  }
  if (detail == Detail::kPlan) absl::StrAppend(&out, RenderPlan(status, view));
  return out;
}

std::string RenderEvents(const v1::ListEventsResponse& response, const View& view) {
  if (response.events().empty()) return "no events\n";
  Table table({Column{"NUMBER", kRight}, Column{"TIME"}, Column{"STATE"}, Column{"EVENT"}});
  for (const v1::JobEvent& event : response.events()) {
    table.Add({absl::StrCat(event.number()),
               TimeText(event.time_ms(), view),
               {StateText(event.state()), ColourOf(event.state())},
               event.text()});
  }
  return table.Render(view);
}

std::string RenderSpec(const v1::JobSpec& spec, const std::string& file) {
  std::string out = absl::StrCat(file, ": valid\n");
  const int64_t steps = spec.train().steps();
  const double tokens =
      static_cast<double>(steps) * spec.train().global_batch() * spec.data().sequence_length();
  AddLine(out, "job", spec.name());
  AddLine(out, "model",
          !spec.model().from().empty()     ? spec.model().from()
          : !spec.model().preset().empty() ? spec.model().preset()
                                           : "as written");
  AddLine(out, "data", spec.data().path());
  AddLine(out, "steps",
          absl::StrCat(steps, " of ", spec.train().global_batch(), " sequences of ",
                       spec.data().sequence_length(), " tokens: ", CountText(tokens),
                       " tokens in all"));
  AddLine(out, "nodes",
          absl::StrCat("at least ", spec.parallel().min_nodes(), ", at most ",
                       std::max(spec.parallel().min_nodes(), spec.parallel().max_nodes()),
                       spec.parallel().nodes().empty() ? ", any" : ", of ",
                       absl::StrJoin(spec.parallel().nodes(), ", "),
                       spec.parallel().exclude_nodes().empty() ? "" : ", never ",
                       absl::StrJoin(spec.parallel().exclude_nodes(), ", "),
                       spec.parallel().prefer_nodes().empty() ? "" : ", first ",
                       absl::StrJoin(spec.parallel().prefer_nodes(), ", ")));
  return out;
}

std::string RenderCertificates(const std::vector<NamedCertificate>& certificates,
                               const View& view) {
  Table table({Column{"FILE"}, Column{"NAME"}, Column{"ROLE"}, Column{"CA"}, Column{"VALID UNTIL"},
               Column{"ADDRESSES"}});
  for (const NamedCertificate& certificate : certificates) {
    const CertificateInfo& info = certificate.info;
    const bool expired = info.not_after < view.now;
    const std::string until = TimeText(absl::ToUnixMillis(info.not_after), view);
    table.Add({certificate.path,
               info.name,
               info.is_ca              ? "CA"
               : info.role.has_value() ? std::string(RoleName(*info.role))
                                       : "none",
               info.issuer,
               {expired ? absl::StrCat(until, " (expired)") : until,
                expired ? Colour::kRed : Colour::kNone},
               info.addresses.empty() ? "-" : absl::StrJoin(info.addresses, ", ")});
  }
  return table.Render(view);
}

void Table::Add(std::vector<Cell> row) {
  ESPALIER_CHECK(row.size() == columns_.size(), "a row has one cell per column");
  for (Cell& cell : row) cell.text = Printable(cell.text);
  rows_.push_back(std::move(row));
}

std::string Table::Render(const View& view, int indent) const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = Width(columns_[i].title);
    for (const std::vector<Cell>& row : rows_) width = std::max(width, Width(row[i].text));
    widths.push_back(width);
  }
  std::string out;
  const auto append = [&](size_t i, const std::string& text, Colour colour) {
    const std::string padding(widths[i] - Width(text), ' ');
    const bool right = columns_[i].align == Align::kRight;
    const bool last = i + 1 == columns_.size();
    absl::StrAppend(&out, right ? padding : "", Paint(text, colour, view));
    absl::StrAppend(&out, right || last ? "" : padding, last ? "\n" : "  ");
  };
  out.append(static_cast<size_t>(indent), ' ');
  for (size_t i = 0; i < columns_.size(); ++i) append(i, columns_[i].title, Colour::kDim);
  for (const std::vector<Cell>& row : rows_) {
    out.append(static_cast<size_t>(indent), ' ');
    for (size_t i = 0; i < row.size(); ++i) append(i, row[i].text, row[i].colour);
  }
  return out;
}

}  // namespace espalier::ctl
