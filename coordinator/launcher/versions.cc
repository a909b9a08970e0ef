#include "coordinator/launcher/versions.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace espalier {
namespace {

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// What follows `label`, if it begins with a digit, up to a space, a bracket or the end of the line.
std::string VersionAfter(absl::string_view text, absl::string_view label) {
  const size_t at = text.find(label);
  if (at == absl::string_view::npos) return "";
  const absl::string_view rest = text.substr(at + label.size());
  const bool number = !rest.empty() && absl::ascii_isdigit(static_cast<unsigned char>(rest[0]));
  return number ? std::string(rest.substr(0, rest.find_first_of(" ),\n\r"))) : "";
}

}  // namespace

std::string OpenMpiVersionIn(absl::string_view answer) {
  return VersionAfter(answer, "(Open MPI) ");
}

std::string LibTorchVersionIn(absl::string_view answer) {
  return VersionAfter(answer, "LibTorch ");
}

ProgramVersions::ProgramVersions(const ProgramVersionsOptions& options, Clock& clock)
    : limit_(options.limit), clock_(clock) {
  versions_.set_espalier(ESPALIER_VERSION);
  questions_ = {{.program = options.mpirun,
                 .answer_path = options.scratch + "/version-0",
                 .version_in = &OpenMpiVersionIn,
                 .version = versions_.mutable_open_mpi()},
                {.program = options.worker,
                 .answer_path = options.scratch + "/version-1",
                 .version_in = &LibTorchVersionIn,
                 .version = versions_.mutable_libtorch()}};
  std::erase_if(questions_, [this](Question& question) { return !Ask(question); });
}

ProgramVersions::~ProgramVersions() {
  for (const Question& question : questions_) {
    SignalSession(question.process, SIGKILL);
    unlink(question.answer_path.c_str());
  }
}

bool ProgramVersions::Ask(Question& question) {
  unlink(question.answer_path.c_str());
  absl::StatusOr<GatedProcess> process = GatedProcess::Spawn(
      {.argv = {question.program, "--version"}, .log_path = question.answer_path});
  if (!process.ok()) return false;
  process->Release();
  question.process = process->identity();
  question.until = clock_.Monotonic() + limit_;
  return true;
}

bool ProgramVersions::Answered(Question& question) {
  const absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(question.process.pid);
  if (exit.ok() && !exit->has_value()) {
    question.ended = clock_.Monotonic() > question.until;
    if (question.ended) SignalSession(question.process, SIGKILL);
    return false;
  }
  if (std::exchange(question.ended, false) && !std::exchange(question.again, true) &&
      Ask(question)) {
    return false;
  }
  *question.version = question.version_in(AsUtf8(ReadText(question.answer_path)));
  unlink(question.answer_path.c_str());
  return true;
}

void ProgramVersions::Look() {
  std::erase_if(questions_, [this](Question& question) { return Answered(question); });
}

}  // namespace espalier
