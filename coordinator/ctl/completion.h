// Completion scripts for bash and zsh, made from the command line's own description, so that they
// know every verb and option. Used by the verb `completion`. Pure functions: any thread.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace espalier::ctl {

std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);

}  // namespace espalier::ctl
