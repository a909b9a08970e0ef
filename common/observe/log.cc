#include "common/observe/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace espalier {
namespace {

void SetPattern(spdlog::logger& logger, absl::string_view prefix) {
  std::string pattern = "%Y-%m-%dT%H:%M:%S.%eZ %-7l ";
  if (!prefix.empty()) {
    absl::StrAppend(&pattern, "[", absl::StrReplaceAll(prefix, {{"%", "%%"}}), "] ");
  }
  pattern += "%v";
  logger.set_formatter(
      std::make_unique<spdlog::pattern_formatter>(pattern, spdlog::pattern_time_type::utc));
}

// Lives as long as the process, so that objects that die late may still log.
spdlog::logger& Logger() {
  static spdlog::logger& logger = *[] {
    auto* made = new spdlog::logger("espalier", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::info);
    made->flush_on(spdlog::level::debug);
    SetPattern(*made, "");
    return made;
  }();
  return logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kNothing:
      return spdlog::level::off;
  }
  return spdlog::level::err;
}

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7f;
}

std::string Printable(absl::string_view line) {
  std::string text;
  for (const char c : line) {
    if (IsControl(c)) {
      absl::StrAppendFormat(&text, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

void Log(LogLevel level, absl::string_view message) {
  spdlog::logger& logger = Logger();
  const spdlog::level::level_enum as = ToSpdlog(level);
  if (!logger.should_log(as)) return;
  if (absl::EndsWith(message, "\n")) message.remove_suffix(1);
  for (const absl::string_view line : absl::StrSplit(message, '\n')) {
    const std::string text = Printable(line);
    logger.log(as, spdlog::string_view_t(text.data(), text.size()));
  }
}

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  return absl::InvalidArgumentError(
      absl::StrCat("log level is '", text, "'; allowed: debug, info, warning, error"));
}

void SetLogPrefix(absl::string_view prefix) { SetPattern(Logger(), prefix); }

}  // namespace espalier
