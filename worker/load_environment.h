// What libraries read from the environment once, when the program is loaded: set for the user, by
// starting the program again in its place. Used by main.cc, before anything else.
#pragma once

namespace espalier {

// Returns where nothing is to be set, or all is; else the program begins anew, in this process.
// A variable that the user has set is left alone.
void SetLoadEnvironment(char** argv);

}  // namespace espalier
