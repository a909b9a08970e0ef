// data, generate: what espalier-worker does.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/platform/platform.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

struct HandedOver {
  const char* verb;
  const char* description;
  const char* example;
};

constexpr std::array kVerbs = {
    HandedOver{"data", "Prepare and inspect training text (data prepare, data inspect)",
               "espalier data prepare --output data book.txt"},
    HandedOver{"generate", "Continue a text with a trained model",
               "espalier generate --checkpoint checkpoints/step-00000500 --prompt 'Once'"},
};

}  // namespace

bool IsHandedOver(absl::string_view verb) {
  return std::any_of(kVerbs.begin(), kVerbs.end(),
                     [verb](const HandedOver& known) { return verb == known.verb; });
}

absl::Status HandOver(const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(const std::string folder, ProgramFolder());
  const std::string program = absl::StrCat(folder, "/espalier-worker");
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return absl::ErrnoToStatus(
      errno, absl::StrCat("'", arguments.front(), "' is done by espalier-worker, and ", program,
                          " cannot be started; both programs belong in one folder"));
}

void AddHandedOverVerbs(VerbTable verbs) {
  for (const HandedOver& verb : kVerbs) {
    AddVerb(verbs.app, verb.verb, verb.description, verb.example)->prefix_command();
  }
}

}  // namespace espalier::ctl
