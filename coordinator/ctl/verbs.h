// The verbs of `espalier`, each a CLI11 subcommand that chooses an Action. Used by app.cc. Called
// once, while the command line is set up.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/ctl/options.h"

namespace espalier::ctl {

// Where verbs are added, and where the one that was typed leaves its work.
struct VerbTable {
  CLI::App& app;
  Action& chosen;
};

void AddSubmitVerbs(VerbTable verbs);      // submit, validate
void AddJobVerbs(VerbTable verbs);         // jobs, job, events
void AddNodeVerbs(VerbTable verbs);        // nodes, nodes add, nodes drain, ...
void AddControlVerbs(VerbTable verbs);     // pause, resume, cancel, checkpoint
void AddFollowVerbs(VerbTable verbs);      // watch, logs
void AddPkiVerbs(VerbTable verbs);         // pki init, issue, show
void AddHandedOverVerbs(VerbTable verbs);  // data, generate: espalier-worker does them
void AddConvertVerb(VerbTable verbs);      // convert
void AddReferenceVerb(VerbTable verbs);    // reference job, cluster
void AddCompletionVerb(VerbTable verbs);   // completion bash, zsh

// `validate FILE`, which is also `job validate FILE`: `verbs.app` may itself be a verb.
void AddValidate(VerbTable verbs);

// A subcommand whose --help ends with examples, one a line.
CLI::App* AddVerb(CLI::App& parent, const std::string& name, const std::string& description,
                  const std::string& examples);
// The positional that names a job: an id, a prefix of one, or a unique name.
void AddJobArgument(CLI::App* verb, std::string& job);

// Verbs that need LibTorch are done by espalier-worker, so that `espalier` itself starts in
// milliseconds: the process becomes `espalier-worker VERB ARGUMENTS`.
bool IsHandedOver(absl::string_view verb);
// INVALID_ARGUMENT names a global option of `app` among the arguments: it would not be obeyed. The
// verb stands at `position`.
absl::Status CheckHandedOver(const CLI::App& app, const std::vector<std::string>& arguments,
                             size_t position);
// Replaces the process by the espalier-worker beside this program, with the arguments as they are
// (verb first). Returns only on failure: NOT_FOUND says where it was looked for.
absl::Status HandOver(const std::vector<std::string>& arguments);

// Completion scripts, made from the command line's own description, so that they know every verb
// and option. Pure.
std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);

}  // namespace espalier::ctl
