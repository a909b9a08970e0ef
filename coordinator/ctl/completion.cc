
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

using Subcommands = std::vector<const CLI::App*>;

Subcommands SubcommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// "--plan --help": the options of one verb, both spellings.
std::vector<std::string> OptionsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

void AddOptionsWithValue(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional() || option->get_expected_max() == 0) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  for (const CLI::App* verb : SubcommandsOf(app)) AddOptionsWithValue(*verb, names);
}

bool TakesJob(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional() && option->get_name(true) == "JOB") return true;
  }
  return false;
}

std::vector<std::string> NamesOf(const Subcommands& verbs) {
  std::vector<std::string> names;
  for (const CLI::App* verb : verbs) names.push_back(verb->get_name());
  return names;
}

// One branch of `case $verb in`: sets `candidates` to what may follow the verb. Job ids are asked
// of the coordinator at most for a second.
std::string Branch(const std::string& words_before, const CLI::App& verb) {
  std::vector<std::string> words = NamesOf(SubcommandsOf(verb));
  for (const std::string& option : OptionsOf(verb)) words.push_back(option);
  if (TakesJob(verb)) words.push_back("$(_espalier_jobs)");
  return absl::StrCat("    '", words_before, "') candidates=\"", absl::StrJoin(words, " "),
                      "\" ;;\n");
}

// Of a verb that espalier-worker does: it knows its options. The global ones are none of them.
std::string HandedOverBranch(const std::string& words_before, const CLI::App& verb) {
  return absl::StrCat("    '", words_before, "') global= candidates=\"",
                      absl::StrJoin(NamesOf(SubcommandsOf(verb)), " "), " $(_espalier_options ",
                      words_before, ")\" ;;\n");
}

std::string Branches(const CLI::App& app) {
  std::string out = Branch("", app);
  for (const CLI::App* verb : SubcommandsOf(app)) {
    const std::string name = verb->get_name();
    const auto branch = IsHandedOver(name) ? HandedOverBranch : Branch;
    absl::StrAppend(&out, branch(name, *verb));
    for (const CLI::App* part : SubcommandsOf(*verb)) {
      absl::StrAppend(&out, branch(absl::StrCat(name, " ", part->get_name()), *part));
    }
  }
  return out;
}

// Verbs whose second word is a verb too.
std::string Groups(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : SubcommandsOf(app)) {
    for (const CLI::App* part : SubcommandsOf(*verb)) {
      names.push_back(absl::StrCat("'", verb->get_name(), " ", part->get_name(), "'"));
    }
  }
  return absl::StrJoin(names, "|");
}

// The part that both shells share. It finds the verb among the words before the cursor (in `typed`)
// and sets `candidates`, and `global` to the global options that may follow. WITH_VALUE, GROUPS and
// BRANCHES are filled in.
constexpr char kShared[] =
    R"(_espalier_jobs() { espalier --timeout ${_espalier_seconds:-1} jobs -q 2>/dev/null | tr '\n' ' '; }
_espalier_options() {
  espalier "$@" --help 2>/dev/null |
    sed -nE 's/^ +(-[a-z], ?)?(--[a-z0-9-]+).*/\2/p' | tr '\n' ' '
}
_espalier_words() {
  verb=
  global="@GLOBAL@"
  local word skip=
  for word in "$@"; do
    if [ -n "$skip" ]; then skip=; continue; fi
    case "$word" in
      @WITH_VALUE@) skip=1 ;;
      -*) ;;
      *) if [ -z "$verb" ]; then verb=$word; else
           case "$verb $word" in @GROUPS@) verb="$verb $word" ;; esac
         fi ;;
    esac
  done
  awaited=$skip
  case "$verb" in
@BRANCHES@    *) candidates= ;;
  esac
}
)";

// The bash of macOS, 3.2, reads nothing from `source <(...)`, and says nothing.
constexpr char kUseInBash[] = "eval \"$(espalier completion bash)\"";

constexpr char kBash[] =
    R"bash(# bash completion for espalier. Use: eval "$(espalier completion bash)"
@SHARED@
_espalier() {
  local verb global candidates awaited cur=${COMP_WORDS[COMP_CWORD]}
  _espalier_words "${COMP_WORDS[@]:1:COMP_CWORD-1}"
  COMPREPLY=()
  if [ -n "$awaited" ]; then
    case "${global:+${COMP_WORDS[COMP_CWORD-1]}}" in
      -o|--output) COMPREPLY=($(compgen -W "table json" -- "$cur")) ;;
      --role) COMPREPLY=($(compgen -W "operator viewer worker trainer coordinator" -- "$cur")) ;;
    esac
    return
  fi
  COMPREPLY=($(compgen -W "$candidates $global" -- "$cur"))
}
complete -o default -F _espalier espalier
)bash";

constexpr char kZsh[] = R"(#compdef espalier
# zsh completion for espalier. Use: source <(espalier completion zsh), after compinit
@SHARED@
_espalier() {
  local verb global candidates awaited cur=${words[CURRENT]} last=${words[CURRENT-1]}
  local -a before=("${(@)words[2,CURRENT-1]}")
  _espalier_words "${before[@]}"
  if [ -n "$awaited" ]; then
    case "${global:+$last}" in
      -o|--output) compadd -- table json ;;
      --role) compadd -- operator viewer worker trainer coordinator ;;
      *) _files ;;
    esac
    return
  fi
  compadd -- ${=candidates}
  case "$cur" in
    -*) compadd -- ${=global} ;;
    *) _files ;;
  esac
}
if (( $+functions[compdef] )); then compdef _espalier espalier; fi
)";

std::string Fill(absl::string_view text, const CLI::App& app) {
  std::vector<std::string> with_value;
  AddOptionsWithValue(app, with_value);
  const std::string shared =
      absl::StrReplaceAll(kShared, {{"@WITH_VALUE@", absl::StrJoin(with_value, "|")},
                                    {"@GROUPS@", Groups(app)},
                                    {"@GLOBAL@", absl::StrJoin(OptionsOf(app), " ")},
                                    {"@BRANCHES@", Branches(app)}});
  return absl::StrReplaceAll(text, {{"@SHARED@", shared}});
}

}  // namespace

std::string BashCompletion(const CLI::App& app) { return Fill(kBash, app); }

std::string ZshCompletion(const CLI::App& app) { return Fill(kZsh, app); }

void AddCompletionVerb(VerbTable verbs) {
  CLI::App* completion = AddVerb(verbs.app, "completion", "Print a completion script for a shell",
                                 absl::StrCat(kUseInBash,
                                              "\nespalier completion zsh > "
                                              "~/.zfunc/_espalier"));
  completion->require_subcommand(1);
  const auto add = [&](const std::string& shell, const char* use,
                       std::string (*script)(const CLI::App&)) {
    CLI::App* verb = AddVerb(*completion, shell, absl::StrCat("For ", shell), use);
    verb->callback([verbs, script] {
      verbs.chosen = [verbs, script](Context& context) -> absl::StatusOr<ExitCode> {
        context.terminal.Out(script(verbs.app));
        return kDone;
      };
    });
  };
  add("bash", kUseInBash, BashCompletion);
  add("zsh", "source <(espalier completion zsh)", ZshCompletion);
}

}  // namespace espalier::ctl
