#include "worker/generation/text_stream.h"

#include <algorithm>
#include <optional>

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

std::vector<int32_t> StopIds(const std::vector<int64_t>& ends, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids(ends.begin(), ends.end());
  ids.push_back(tokenizer.end_of_text());
  for (const char* end : {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>"}) {
    const std::optional<int32_t> id = tokenizer.IdOf(end);
    if (id && tokenizer.IsSpecial(*id)) ids.push_back(*id);
  }
  return ids;
}

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
