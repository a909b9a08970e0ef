#include "worker/generation/text_stream.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace espalier {
namespace {

// How much of the end of `text` may become `stop`.
size_t Begun(absl::string_view text, absl::string_view stop) {
  for (size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size) {
    if (absl::EndsWith(text, stop.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

std::string TextStream::Append(int32_t id) {
  if (stopped_) return {};
  if (const absl::StatusOr<std::string> text = decoder_.Append(id); text.ok()) held_ += *text;
  return Release();
}

std::string TextStream::Finish() {
  if (stopped_) return {};
  held_ += decoder_.Finish();
  std::string text = Release();
  return stopped_ ? text : text + std::exchange(held_, {});
}

std::string TextStream::Release() {
  size_t end = std::string::npos, begun = 0;
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
    begun = std::max(begun, Begun(held_, stop));
  }
  stopped_ = end != std::string::npos;
  if (!stopped_) end = held_.size() - begun;
  std::string text = held_.substr(0, end);
  held_.erase(0, stopped_ ? held_.size() : end);
  return text;
}

}  // namespace espalier
