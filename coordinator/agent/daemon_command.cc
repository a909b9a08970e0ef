#include "coordinator/agent/daemon_command.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr size_t kLongest = 65536;
constexpr absl::string_view kQuotable = "._-,:/@^%+[]()=~; ";
constexpr absl::string_view kPlain = "._-,:/@^%+[]=~";

enum class Value {
  // Letters, digits and ". _ - , @ ^": names of components, name spaces, lists.
  kWord,
  kNumber,
  // Open MPI's short form of the hosts' names.
  kHosts,
  // Where the mpirun that asks is to be reached.
  kUri,
  // Networks as CIDR.
  kNetworks,
  // Known, and not passed on.
  kDropped,
};

// Every parameter that mpirun 4.1 and 5.0 give to their daemons for what Espalier asks of them.
// Others could name programs to run, libraries to load or files to write.
const std::map<std::string, Value, std::less<>>& Parameters() {
  static const auto& parameters = *new std::map<std::string, Value, std::less<>>{
      {"ess", Value::kWord},
      {"ess_base_jobid", Value::kNumber},
      {"ess_base_nspace", Value::kWord},
      {"ess_base_vpid", Value::kNumber},
      {"ess_base_num_procs", Value::kNumber},
      {"orte_node_regex", Value::kHosts},
      {"orte_hnp_uri", Value::kUri},
      {"prte_hnp_uri", Value::kUri},
      {"plm", Value::kWord},
      {"plm_rsh_agent", Value::kDropped},
      {"plm_ssh_agent", Value::kDropped},
      {"plm_rsh_no_tree_spawn", Value::kNumber},
      {"plm_ssh_no_tree_spawn", Value::kNumber},
      {"if_base_do_not_resolve", Value::kNumber},
      {"odls_base_sigkill_timeout", Value::kNumber},
      {"oob_tcp_if_include", Value::kNetworks},
      {"prte_if_include", Value::kNetworks},
      {"pml", Value::kWord},
      {"pml_ob1_use_all_rdma", Value::kNumber},
      {"pml_ob1_max_rdma_per_request", Value::kNumber},
      {"btl", Value::kWord},
      {"btl_tcp_links", Value::kNumber},
      {"btl_tcp_if_include", Value::kNetworks},
      {"btl_tcp_sndbuf", Value::kNumber},
      {"btl_tcp_rcvbuf", Value::kNumber},
      {"hwloc_base_binding_policy", Value::kWord},
      {"hwloc_default_binding_policy", Value::kWord},
      {"rmaps_base_mapping_policy", Value::kWord},
      {"rmaps_default_mapping_policy", Value::kWord},
      {"pmix", Value::kWord},
      {"pmix_session_server", Value::kNumber},
      {"PREFIXES", Value::kWord},
  };
  return parameters;
}

absl::Status Refused(absl::string_view what, absl::string_view seen) {
  return absl::InvalidArgumentError(
      absl::StrCat("the agent starts nothing but Open MPI's daemon as mpirun asks for it: ", what,
                   " '", absl::CHexEscape(seen.substr(0, 100)), "'"));
}

bool AllOf(absl::string_view text, absl::string_view others) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains(others, c);
  });
}

bool IsUri(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ';');
  if (parts.size() < 2 || !AllOf(parts[0], ".-_@")) return false;
  return std::all_of(parts.begin() + 1, parts.end(), [](absl::string_view part) {
    return (absl::ConsumePrefix(&part, "tcp://") || absl::ConsumePrefix(&part, "tcp6://")) &&
           AllOf(part, ".,:[]");
  });
}

bool Fits(Value kind, absl::string_view text) {
  if (text.empty()) return false;
  switch (kind) {
    case Value::kWord:
      return AllOf(text, "._-,@^");
    case Value::kNumber:
      return std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
    case Value::kHosts:
      return AllOf(text, "._-,:[]()@");
    case Value::kUri:
      return IsUri(text);
    case Value::kNetworks:
      return AllOf(text, "./,:");
    case Value::kDropped:
      return true;
  }
  return false;
}

struct Token {
  std::string text;
  // A ';' outside of quotes.
  bool separator = false;
};

// As a shell would split the text, for the few forms that mpirun uses.
absl::StatusOr<std::vector<Token>> Tokens(absl::string_view text) {
  std::vector<Token> tokens;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == ' ') {
      ++at;
    } else if (c == ';') {
      tokens.push_back({.text = ";", .separator = true});
      ++at;
    } else if (c == '"') {
      const size_t end = text.find('"', at + 1);
      if (end == absl::string_view::npos) return Refused("unbalanced quotes in", text.substr(at));
      const absl::string_view inside = text.substr(at + 1, end - at - 1);
      if (!AllOf(inside, kQuotable)) return Refused("a character not allowed in", inside);
      const bool whole = end + 1 == text.size() || text[end + 1] == ' ' || text[end + 1] == ';';
      if (!whole) return Refused("text glued to quotes in", text.substr(at));
      tokens.push_back({.text = std::string(inside)});
      at = end + 1;
    } else {
      const size_t end = std::min(text.find_first_of(" ;\"", at), text.size());
      if (end < text.size() && text[end] == '"') return Refused("text glued to quotes", text);
      tokens.push_back({.text = std::string(text.substr(at, end - at))});
      at = end;
    }
  }
  return tokens;
}

// "NAME=VALUE" or "export NAME" of the few that say where Open MPI's libraries are; the value is
// not used.
bool IsAssignment(const std::vector<std::string>& words) {
  static const auto& names = *new std::set<std::string, std::less<>>{
      "PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX"};
  if (words.size() == 2 && words[0] == "export") return names.count(words[1]) > 0;
  if (words.size() != 1) return false;
  const size_t equals = words[0].find('=');
  return equals != std::string::npos && names.count(words[0].substr(0, equals)) > 0 &&
         AllOf(absl::string_view(words[0]).substr(equals + 1), "._-:/+${}@");
}

// What mpirun puts around the command where the user's shell is sh or ksh.
absl::string_view WithoutProfile(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  absl::string_view inner = text;
  if (absl::ConsumePrefix(&inner, "( test ! -r ./.profile || . ./.profile;") &&
      absl::ConsumeSuffix(&inner, ")")) {
    return inner;
  }
  return text;
}

// Of a parameter that no table has: whether it could only have changed a figure or a choice.
bool IsHarmless(const std::string& option, const std::string& name, const std::string& value) {
  static const auto& choices = *new std::set<std::string, std::less<>>{
      "true", "false", "yes", "no", "on", "off", "enabled", "disabled"};
  constexpr absl::string_view kOfCode[] = {"agent",  "command", "component", "dir",    "env",
                                           "exec",   "file",    "launch",    "lib",    "load",
                                           "output", "param",   "path",      "plugin", "prefix",
                                           "script", "server",  "tmp",       "topo",   "uri"};
  const bool of_five = absl::EndsWith(option, "-prtemca") || absl::EndsWith(option, "-pmixmca");
  const std::string lower = absl::AsciiStrToLower(name);
  return of_five && !name.empty() && AllOf(name, "_") &&
         std::none_of(std::begin(kOfCode), std::end(kOfCode),
                      [&](absl::string_view part) { return absl::StrContains(lower, part); }) &&
         (choices.count(value) > 0 || Fits(Value::kNumber, value));
}

absl::Status AddParameter(const std::string& option, const std::string& name,
                          const std::string& value, DaemonCommand& command) {
  const auto known = Parameters().find(name);
  if (known == Parameters().end() && command.program == "prted" &&
      IsHarmless(option, name, value)) {
    command.left_out.push_back(absl::StrCat(name, " ", value));
    return absl::OkStatus();
  }
  if (known == Parameters().end()) {
    return Refused(
        "unknown parameter (where espalierd is of another build than this agent, restart the agent "
        "with the build of espalierd)",
        name);
  }
  if (!Fits(known->second, value)) {
    return Refused(absl::StrCat("parameter ", name, " cannot be"), value);
  }
  if (known->second == Value::kDropped) return absl::OkStatus();
  command.arguments.insert(command.arguments.end(), {option, name, value});
  return absl::OkStatus();
}

absl::StatusOr<DaemonCommand> ParseStatement(const std::vector<std::string>& words) {
  static const auto& options = *new std::set<std::string, std::less<>>{
      "-mca", "--mca", "-prtemca", "--prtemca", "-pmixmca", "--pmixmca"};
  DaemonCommand command;
  if (!AllOf(words[0], kPlain)) return Refused("a character not allowed in", words[0]);
  command.program = words[0].substr(words[0].rfind('/') + 1);
  if (command.program != "orted" && command.program != "prted") {
    return Refused("not the program", words[0]);
  }
  // It would move itself and its ranks into a session that the agent does not know.
  if (command.program == "prted") command.arguments.push_back("--leave-session-attached");
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "--daemonize") continue;
    if (words[i] == "--allow-run-as-root") {
      command.arguments.push_back(words[i]);
    } else if (options.count(words[i]) == 0) {
      return Refused("unknown option", words[i]);
    } else if (i + 2 >= words.size()) {
      return Refused("an option without its value,", words[i]);
    } else {
      RETURN_IF_ERROR(AddParameter(words[i], words[i + 1], words[i + 2], command));
      i += 2;
    }
  }
  return command;
}

}  // namespace

absl::StatusOr<DaemonCommand> ParseDaemonCommand(const std::vector<std::string>& words) {
  const std::string joined = absl::StrJoin(words, " ");  // as ssh hands it to the other side
  if (joined.size() > kLongest) return Refused("too long,", joined);
  for (const char c : joined) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) {
      return Refused("a character not allowed in", joined);
    }
  }
  ASSIGN_OR_RETURN(const std::vector<Token> tokens, Tokens(WithoutProfile(joined)));
  std::vector<std::string> statement;
  for (const Token& token : tokens) {
    if (!token.separator) {
      statement.push_back(token.text);
      continue;
    }
    if (!statement.empty() && !IsAssignment(statement)) {
      return Refused("not an assignment,", absl::StrJoin(statement, " "));
    }
    statement.clear();
  }
  if (statement.empty()) return Refused("no program in", joined);
  return ParseStatement(statement);
}

}  // namespace espalier
