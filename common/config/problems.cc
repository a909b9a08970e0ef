#include "common/config/problems.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {

void Problems::Add(absl::string_view where, absl::string_view what) {
  ++count_;
  if (lines_.size() >= kShownMax) return;
  lines_.push_back(where.empty() ? std::string(what) : absl::StrCat(where, ": ", what));
}

absl::Status Problems::ToStatus() const {
  if (empty()) return absl::OkStatus();
  std::string text = absl::StrJoin(lines_, "\n");
  if (count_ > lines_.size()) {
    absl::StrAppend(&text, "\nand ", count_ - lines_.size(), " more problems");
  }
  return absl::InvalidArgumentError(text);
}

}  // namespace espalier
