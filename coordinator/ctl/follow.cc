#include "coordinator/ctl/follow.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/ctl/json.h"
#include "coordinator/ctl/render.h"

namespace espalier::ctl {
namespace {

double Fraction(const v1::JobStatus& status) {
  if (status.total_steps() <= 0) return 0;
  return static_cast<double>(status.step()) / static_cast<double>(status.total_steps());
}

std::string Title(const v1::JobStatus& status, const View& view) {
  std::string out =
      absl::StrCat(Paint(Printable(status.name()), Colour::kBold, view), "  ", status.id(), "  ",
                   Paint(StateText(status.state()), ColourOf(status.state()), view));
  if (status.state_since_ms() > 0) {
    absl::StrAppend(&out, " for ",
                    DurationText(view.now - absl::FromUnixMillis(status.state_since_ms())));
  }
  absl::StrAppend(&out, ", generation ", status.generation());
  if (status.restarts() > 0) absl::StrAppend(&out, ", ", status.restarts(), " restarts");
  return out;
}

// Tasks say first what their users look at: "reward 0.17". RenderJob has all figures.
void AddFirst(const google::protobuf::RepeatedPtrField<v1::TaskFigure>& figures,
              std::vector<std::string>& parts) {
  if (figures.empty()) return;
  parts.push_back(absl::StrFormat("%s %.4g", figures[0].name(), figures[0].value()));
}

std::string Numbers(const v1::JobStatus& status) {
  std::vector<std::string> parts = {absl::StrCat("loss ", LossText(status.loss()))};
  AddFirst(status.figures(), parts);
  if (status.has_validation_loss()) {
    parts.push_back(absl::StrCat("validation ", LossText(status.validation_loss()), " at ",
                                 status.validation_step()));
  }
  AddFirst(status.evaluation_figures(), parts);
  if (status.tokens_per_second() > 0) {
    parts.push_back(absl::StrCat(CountText(status.tokens_per_second()), " tokens/s"));
  }
  if (status.learning_rate() > 0) {
    parts.push_back(absl::StrFormat("lr %.2e", status.learning_rate()));
  }
  if (status.gradient_norm() > 0) {
    parts.push_back(absl::StrFormat("gradient %.3g", status.gradient_norm()));
  }
  if (status.skipped_steps() > 0) {
    parts.push_back(absl::StrCat(status.skipped_steps(), " skipped"));
  }
  return absl::StrJoin(parts, "   ");
}

std::string BarLine(const v1::JobStatus& status, const View& view) {
  const std::string text = absl::StrCat(
      absl::StrFormat(" %5.1f %%  step %d/%d", 100 * Fraction(status), status.step(),
                      status.total_steps()),
      status.has_eta_seconds()
          ? absl::StrCat("  ", DurationText(absl::Seconds(status.eta_seconds())), " left")
          : "");
  const int width = std::clamp(view.width - 2 - static_cast<int>(text.size()), 12, 42);
  return absl::StrCat(ProgressBar(Fraction(status), width, view), text);
}

std::string CheckpointLine(const v1::CheckpointReport& report, const View& view) {
  if (!report.error().empty()) {
    return Paint(
        Printable(absl::StrCat("checkpoint of step ", report.step(), " failed: ", report.error())),
        Colour::kRed, view);
  }
  return absl::StrCat("checkpoint of step ", report.step(), ", ", BytesText(report.bytes()));
}

// Whatever makes a status worth a line of its own.
std::string Standing(const v1::JobStatus& status) {
  return absl::StrCat(status.state(), "/", status.generation(), "/", status.reason());
}

constexpr absl::Duration kPlainInterval = absl::Seconds(2);

// Shows statuses in one of the three forms; Show returns false when nobody reads any more.
class Display {
 public:
  explicit Display(Context& context) : context_(context), plain_(kPlainInterval) {}

  bool Show(const v1::JobStatus& status) {
    const View view = context_.terminal.view(context_.clock);
    if (context_.options.json()) {
      return ShowOnce(JsonLine(nlohmann::ordered_json{{"status", ToJson(status)}}));
    }
    if (context_.terminal.interactive()) {
      const std::string frame = RenderFrame(status, view);
      const std::string codes = Redraw(previous_, frame);
      previous_ = frame;
      return context_.terminal.Out(codes);
    }
    const std::optional<std::string> line = plain_.Next(status, view);
    return !line.has_value() || context_.terminal.Out(*line);
  }

  void Interrupted(const absl::Status& why) {
    if (warned_) return;
    warned_ = true;
    previous_.clear();
    context_.terminal.Remark("espalier: the coordinator went away; trying to reach it again\n");
  }

 private:
  // A tick without news repeats nothing.
  bool ShowOnce(std::string line) {
    if (line == previous_) return true;
    previous_ = std::move(line);
    return context_.terminal.Out(previous_);
  }

  Context& context_;
  PlainProgress plain_;
  std::string previous_;
  bool warned_ = false;
};

}  // namespace

absl::StatusOr<v1::JobStatus> ShowProgress(Context& context, OperatorClient& client,
                                           const std::string& job) {
  Display display(context);
  return client.Follow(
      job, [&](const v1::JobStatus& status) { return display.Show(status); },
      [&](const absl::Status& why) { display.Interrupted(why); });
}

absl::StatusOr<v1::JobStatus> WaitForEnd(OperatorClient& client, const std::string& job) {
  return client.Follow(
      job, [](const v1::JobStatus&) { return true; }, [](const absl::Status&) {});
}

ExitCode ExitCodeAfter(const v1::JobStatus& status) {
  return IsFinal(status.state()) ? ExitCodeOf(status.state()) : kDone;
}

std::string ProgressBar(double fraction, int width, const View& view) {
  const int cells = std::max(1, width - 2);
  const int full = static_cast<int>(std::floor(std::clamp(fraction, 0.0, 1.0) * cells + 1e-9));
  std::string out = "[";
  for (int i = 0; i < cells; ++i) {
    if (view.unicode) {
      out += i < full ? "\u2588" : "\u2591";
    } else {
      out += i < full ? '#' : '.';
    }
  }
  return out + "]";
}

std::string RenderFrame(const v1::JobStatus& status, const View& view) {
  std::vector<std::string> lines = {Title(status, view)};
  if (!status.reason().empty()) {
    lines.push_back(absl::StrCat("  ", Paint(Printable(status.reason()), Colour::kDim, view)));
  }
  lines.push_back(absl::StrCat("  ", BarLine(status, view)));
  lines.push_back(absl::StrCat("  ", Numbers(status)));
  if (status.has_last_checkpoint()) {
    lines.push_back(absl::StrCat("  ", CheckpointLine(status.last_checkpoint(), view)));
  }
  // Besides the ranks: their title line, a possible "and N more", and the line of the cursor.
  const int room = view.height - static_cast<int>(lines.size()) - 3;
  std::string frame = absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
  if (room > 0) absl::StrAppend(&frame, RenderRanks(status, room, view));
  return frame;
}

std::string Redraw(const std::string& previous, const std::string& next) {
  const auto lines = std::count(previous.begin(), previous.end(), '\n');
  const std::string up = lines > 0 ? absl::StrCat("\x1b[", lines, "F") : "";
  return absl::StrCat("\x1b[?7l", up, "\x1b[0J", next, "\x1b[?7h");
}

std::optional<std::string> PlainProgress::Next(const v1::JobStatus& status, const View& view) {
  const std::string standing = Standing(status);
  const bool changed = standing != last_standing_;
  const bool advanced = status.step() != last_step_;
  if (!changed && (!advanced || view.now - last_time_ < interval_)) return std::nullopt;
  last_standing_ = standing;
  last_step_ = status.step();
  last_time_ = view.now;
  std::string line =
      absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%S%Ez", view.now, view.zone), " ",
                   StateText(status.state()), " step ", status.step(), "/", status.total_steps());
  if (status.step() > 0) absl::StrAppend(&line, " ", Numbers(status));
  if (status.has_eta_seconds() && !IsFinal(status.state())) {
    absl::StrAppend(&line, "   ", DurationText(absl::Seconds(status.eta_seconds())), " left");
  }
  if (changed && !status.reason().empty()) {
    absl::StrAppend(&line, "   (", Printable(status.reason()), ")");
  }
  return line + "\n";
}

}  // namespace espalier::ctl
