#include "coordinator/ctl/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace espalier::ctl {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = absl::AsciiStrToLower(Environment(name));
    if (!value.empty())
      return absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
  }
  return false;
}

bool WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

class StandardStreams : public Terminal {
 public:
  StandardStreams()
      : interactive_(isatty(STDOUT_FILENO) == 1 && Environment("TERM") != "dumb"),
        colour_(interactive_ && Environment("NO_COLOR").empty()),
        unicode_(interactive_ && LocaleIsUtf8()) {}

  bool Out(absl::string_view text) override { return WriteAll(STDOUT_FILENO, text); }
  void Remark(absl::string_view text) override { WriteAll(STDERR_FILENO, text); }
  bool interactive() const override { return interactive_; }

  View view(Clock& clock) const override {
    View view{
        .now = clock.Now(), .zone = absl::LocalTimeZone(), .colour = colour_, .unicode = unicode_};
    winsize size = {};
    if (interactive_ && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
      view.width = size.ws_col;
      view.height = size.ws_row;
    }
    return view;
  }

 private:
  const bool interactive_;
  const bool colour_;
  const bool unicode_;
};

}  // namespace

Terminal& StandardTerminal() {
  static StandardStreams& terminal = *new StandardStreams;
  return terminal;
}

}  // namespace espalier::ctl
