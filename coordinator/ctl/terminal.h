// Terminal: where the CLI writes, and what that place can do. The real one is standard output and
// error; tests write into strings. Used by app.h, options.h and coordinator/espalier_main.cc. One
// thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "coordinator/ctl/text.h"

namespace espalier::ctl {

class Terminal {
 public:
  virtual ~Terminal() = default;
  // Results, unbuffered. False when nobody reads any more (a closed pipe).
  virtual bool Out(absl::string_view text) = 0;
  // Remarks for people: hints, warnings, errors.
  virtual void Remark(absl::string_view text) = 0;
  // Results go to a person's screen, so frames may be redrawn.
  virtual bool interactive() const = 0;
  // The size is asked for anew each time, since windows change.
  virtual View view(Clock& clock) const = 0;
};

// Standard output and error. Colours and redrawing only on a terminal, and not with NO_COLOR set
// (see no-color.org) or TERM=dumb.
Terminal& StandardTerminal();

}  // namespace espalier::ctl
