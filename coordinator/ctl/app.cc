#include "coordinator/ctl/app.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/nearest.h"
#include "common/rpc/call.h"
#include "coordinator/ctl/json.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

constexpr char kExitCodes[] =
    "exit codes: 0 done, 1 the job failed, 2 bad input, 3 not found, 4 wrong state,\n"
    "  5 coordinator unreachable, 6 certificate, token or role, 7 timed out, 8 the job was "
    "cancelled,\n"
    "  9 anything else\n"
    "example:\n"
    "  espalier submit job.yaml && espalier jobs";

void AddGlobalOptions(CLI::App& app, GlobalOptions& options) {
  app.add_option("--coordinator", options.coordinator,
                 "State folder of an espalierd of this machine, or its address")
      ->envname("ESPALIER_COORDINATOR")
      ->capture_default_str()
      ->type_name("FOLDER|HOST:PORT");
  app.add_option("--token", options.token_file,
                 "Token of an espalierd on loopback without TLS: STATE_FOLDER/token")
      ->envname("ESPALIER_TOKEN_FILE")
      ->type_name("FILE");
  app.add_option("--tls-ca", options.tls_ca, "CA certificate")
      ->envname("ESPALIER_TLS_CA")
      ->type_name("FILE");
  app.add_option("--tls-cert", options.tls_certificate, "Own certificate")
      ->envname("ESPALIER_TLS_CERT")
      ->type_name("FILE");
  app.add_option("--tls-key", options.tls_key, "Key of the own certificate")
      ->envname("ESPALIER_TLS_KEY")
      ->type_name("FILE");
  app.add_option("--timeout", options.timeout_seconds, "Longest wait for one answer")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 86400.0))
      ->type_name("SECONDS");
  app.add_option("-o,--output", options.output, "Form of the output")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json"}))
      ->type_name("table|json");
}

std::string VersionText() {
  return absl::StrCat("espalier ", ESPALIER_VERSION, " (", LibraryVersions(), ")");
}

std::unique_ptr<CLI::App> MakeApp(GlobalOptions& options, Action& chosen) {
  auto app =
      std::make_unique<CLI::App>("Train language models on the machines you own", "espalier");
  app->fallthrough();  // Global options may follow the verb.
  app->require_subcommand(1);
  app->footer(kExitCodes);
  AddGlobalOptions(*app, options);
  app->set_version_flag("--version", VersionText, "Print the version");
  const VerbTable verbs{*app, chosen};
  AddSubmitVerbs(verbs);
  AddJobVerbs(verbs);
  AddNodeVerbs(verbs);
  AddFollowVerbs(verbs);
  AddControlVerbs(verbs);
  AddConvertVerb(verbs);
  AddHandedOverVerbs(verbs);
  AddPkiVerbs(verbs);
  AddReferenceVerb(verbs);
  AddCompletionVerb(verbs);
  CLI::App* version = AddVerb(*app, "version", "Print the version", "espalier version");
  version->callback([&chosen] {
    chosen = [](Context& context) -> absl::StatusOr<ExitCode> {
      context.terminal.Out(context.options.json()
                               ? JsonText(nlohmann::ordered_json{{"version", ESPALIER_VERSION}})
                               : VersionText() + "\n");
      return kDone;
    };
  });
  return app;
}

// The first argument that is neither a global option nor its value; arguments.size() without one.
size_t VerbPosition(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!absl::StartsWith(argument, "-")) return i;
    const CLI::Option* option = app.get_option_no_throw(argument);
    if (option != nullptr && option->get_expected_max() > 0) ++i;
  }
  return arguments.size();
}

// A message for a verb that does not exist; nothing when it does or when there is none.
std::optional<std::string> UnknownVerb(const CLI::App& app, const std::string& verb) {
  std::vector<std::string> names;
  for (const CLI::App* known : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (known->check_name(verb)) return std::nullopt;
    names.push_back(known->get_name());
  }
  const std::optional<std::string> nearest = Nearest(verb, names);
  return absl::StrCat("unknown verb '", verb, "'",
                      nearest.has_value() ? absl::StrCat("; did you mean '", *nearest, "'?") : "",
                      "\nverbs: ", absl::StrJoin(names, ", "), "\n");
}

// Help goes to standard output with exit code 0, a usage error to standard error with kBadInput.
int FinishParsing(CLI::App& app, const CLI::ParseError& error, Terminal& terminal) {
  std::ostringstream out, remarks;
  const int code = app.exit(error, out, remarks);
  if (!out.str().empty()) terminal.Out(out.str());
  if (code == 0) return kDone;
  terminal.Remark(absl::StrCat("espalier: ", remarks.str()));
  return kBadInput;
}

void ReportError(const absl::Status& status, const GlobalOptions& options, Terminal& terminal) {
  const std::string message(status.message());
  if (!options.json()) {
    terminal.Remark(absl::StrCat("espalier: ", message, "\n"));
    return;
  }
  const nlohmann::ordered_json error{{"code", absl::StatusCodeToString(status.code())},
                                     {"message", message}};
  terminal.Remark(JsonText(nlohmann::ordered_json{{"error", error}}));
}

}  // namespace

CLI::App* AddVerb(CLI::App& parent, const std::string& name, const std::string& description,
                  const std::string& examples) {
  CLI::App* verb = parent.add_subcommand(name, description);
  std::string footer = "example:";
  for (absl::string_view line : absl::StrSplit(examples, '\n')) {
    absl::StrAppend(&footer, "\n  ", line);
  }
  verb->footer(footer);
  return verb;
}

void AddJobArgument(CLI::App* verb, std::string& job) {
  verb->add_option("JOB", job, "Job id, a prefix of it, or its unique name")->required();
}

int RunEspalier(const std::vector<std::string>& arguments, Terminal& terminal, Clock& clock) {
  GlobalOptions options;
  Action chosen;
  const std::unique_ptr<CLI::App> app = MakeApp(options, chosen);
  const size_t position = VerbPosition(*app, arguments);
  if (position < arguments.size()) {
    const std::string& verb = arguments[position];
    if (const std::optional<std::string> unknown = UnknownVerb(*app, verb)) {
      terminal.Remark(absl::StrCat("espalier: ", *unknown));
      return kBadInput;
    }
    if (IsHandedOver(verb)) {
      absl::Status status = CheckHandedOver(*app, arguments, position);
      if (status.ok()) {
        status =
            HandOver({arguments.begin() + static_cast<std::ptrdiff_t>(position), arguments.end()});
      }
      ReportError(status, options, terminal);
      return ExitCodeOf(status);
    }
  }
  try {
    // CLI11 takes them from the back.
    app->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    return FinishParsing(*app, error, terminal);
  }
  if (!chosen) return kBadInput;
  Context context{options, terminal, clock};
  const absl::StatusOr<ExitCode> result = chosen(context);
  if (result.ok()) return *result;
  ReportError(result.status(), options, terminal);
  return ExitCodeOf(result.status());
}

}  // namespace espalier::ctl
