// data, generate, chat, serve, export, self-test: what espalier-worker does.
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/platform/platform.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

struct HandedOver {
  const char* verb;
  // Verbs behind it, for completion.
  std::vector<std::string> parts;
  const char* description;
  const char* example;
  // An option of its own of the same name as a global one.
  const char* own_option;
};

const std::vector<HandedOver>& HandedOverVerbs() {
  static const auto& verbs = *new std::vector<HandedOver>{
      {"data",
       {"prepare", "inspect", "preview", "tokenizer"},
       "Prepare and inspect training data (data prepare, inspect, preview, tokenizer)",
       "espalier data prepare --output data book.txt",
       "--output"},
      {"generate",
       {},
       "Continue a text with a trained model",
       "espalier generate --checkpoint checkpoints/step-00000500 --prompt 'Once'",
       ""},
      {"chat",
       {},
       "Talk to a trained model",
       "espalier chat --model checkpoints/step-00000500",
       ""},
      {"serve",
       {},
       "Let programs talk to a trained model by OpenAI's HTTP interface",
       "espalier serve --model checkpoints/step-00000500",
       ""},
      {"export",
       {},
       "Write what was trained as an adapter or a model that other programs load",
       "espalier export --checkpoint checkpoints --merge --output model",
       "--output"},
      {"self-test",
       {},
       "Try whether this machine's device computes as its processor does",
       "espalier self-test --device mps",
       ""},
  };
  return verbs;
}

// "--timeout" of "--timeout=3".
std::string OptionName(const std::string& argument) {
  return argument.substr(0, argument.find('='));
}

}  // namespace

bool IsHandedOver(absl::string_view verb) {
  const std::vector<HandedOver>& verbs = HandedOverVerbs();
  return std::any_of(verbs.begin(), verbs.end(),
                     [verb](const HandedOver& known) { return verb == known.verb; });
}

absl::Status CheckHandedOver(const CLI::App& app, const std::vector<std::string>& arguments,
                             size_t position) {
  const std::string& verb = arguments[position];
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::string name = OptionName(arguments[i]);
    const CLI::Option* option =
        absl::StartsWith(name, "-") ? app.get_option_no_throw(name) : nullptr;
    if (option == nullptr || option->get_expected_max() == 0) continue;
    const bool own = std::any_of(
        HandedOverVerbs().begin(), HandedOverVerbs().end(), [&](const HandedOver& known) {
          return i > position && verb == known.verb && name == known.own_option;
        });
    if (own) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is for verbs that ask espalierd; '", verb,
        "' is done by espalier-worker on this machine, where it means nothing: leave it out (its "
        "own options: espalier ",
        verb, " --help)"));
  }
  return absl::OkStatus();
}

absl::Status HandOver(const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(const std::string folder, ProgramFolder());
  const std::string program = absl::StrCat(folder, "/espalier-worker");
  // By the name it is told for whom it works: its help begins with that.
  std::string name = "espalier";
  std::vector<char*> argv = {name.data()};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return absl::ErrnoToStatus(
      errno, absl::StrCat("'", arguments.front(), "' is done by espalier-worker, and ", program,
                          " cannot be started; both programs belong in one folder"));
}

void AddHandedOverVerbs(VerbTable verbs) {
  for (const HandedOver& verb : HandedOverVerbs()) {
    CLI::App* added = AddVerb(verbs.app, verb.verb, verb.description, verb.example);
    added->prefix_command();
    for (const std::string& part : verb.parts) added->add_subcommand(part);
  }
}

}  // namespace espalier::ctl
