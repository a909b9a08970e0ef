#include "coordinator/launcher/versions.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

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
    : clock_(clock) {
  versions_.set_espalier(ESPALIER_VERSION);
  Ask(options, options.mpirun, &OpenMpiVersionIn, versions_.mutable_open_mpi());
  Ask(options, options.worker, &LibTorchVersionIn, versions_.mutable_libtorch());
}

ProgramVersions::~ProgramVersions() {
  for (const Question& question : questions_) {
    SignalSession(question.process, SIGKILL);
    unlink(question.answer_path.c_str());
  }
}

void ProgramVersions::Ask(const ProgramVersionsOptions& options, const std::string& program,
                          std::string (*version_in)(absl::string_view answer),
                          std::string* version) {
  const std::string path = absl::StrCat(options.scratch, "/version-", questions_.size());
  unlink(path.c_str());
  absl::StatusOr<GatedProcess> process =
      GatedProcess::Spawn({.argv = {program, "--version"}, .log_path = path});
  if (!process.ok()) return;
  process->Release();
  questions_.push_back({.process = process->identity(),
                        .answer_path = path,
                        .version_in = version_in,
                        .version = version,
                        .until = clock_.Monotonic() + options.limit});
}

bool ProgramVersions::Answered(const Question& question) {
  const absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(question.process.pid);
  if (exit.ok() && !exit->has_value()) {
    if (clock_.Monotonic() > question.until) SignalSession(question.process, SIGKILL);
    return false;
  }
  *question.version = question.version_in(AsUtf8(ReadText(question.answer_path)));
  unlink(question.answer_path.c_str());
  return true;
}

void ProgramVersions::Look() {
  std::erase_if(questions_, [this](const Question& question) { return Answered(question); });
}

}  // namespace espalier
