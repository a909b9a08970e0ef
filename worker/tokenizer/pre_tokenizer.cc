#include "worker/tokenizer/pre_tokenizer.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

// Joins neighbours where a behaviour says so, and leaves out what is empty.
class Joiner {
 public:
  Joiner(absl::string_view text, PreTokenizer::Visit visit) : text_(text), visit_(visit) {}

  // Takes the piece that ends at `end`; with `join` it goes on the one before.
  absl::Status Take(size_t end, bool join) {
    if (!join) RETURN_IF_ERROR(Flush());
    end_ = end;
    return absl::OkStatus();
  }
  absl::Status Skip(size_t end) {
    RETURN_IF_ERROR(Flush());
    begin_ = end_ = end;
    return absl::OkStatus();
  }
  absl::Status Flush() {
    const absl::string_view piece = text_.substr(begin_, end_ - begin_);
    begin_ = end_;
    return piece.empty() ? absl::OkStatus() : visit_(piece);
  }

 private:
  absl::string_view text_;
  PreTokenizer::Visit visit_;
  size_t begin_ = 0, end_ = 0;  // of the piece in hand
};

}  // namespace

absl::Status PreTokenizer::ForEachPiece(const Split& split, absl::string_view text, Visit visit) {
  Joiner joiner(text, visit);
  bool any = false, last_matched = false;
  const auto piece = [&](size_t end, bool matched) -> absl::Status {
    matched = matched != split.invert;
    const bool after_match = any && last_matched, after_gap = any && !last_matched;
    any = true;
    last_matched = matched;
    switch (split.behavior) {
      case Behavior::kIsolated:
        return joiner.Take(end, false);
      case Behavior::kRemoved:
        return matched ? joiner.Skip(end) : joiner.Take(end, false);
      case Behavior::kContiguous:
        return joiner.Take(end, matched ? after_match : after_gap);
      case Behavior::kMergedWithPrevious:
        return joiner.Take(end, matched && after_gap);
      case Behavior::kMergedWithNext:
        return joiner.Take(end, !matched && after_match);
    }
    return absl::OkStatus();
  };
  PatternMatches matches(split.pattern, text);
  size_t done = 0;
  for (;;) {
    ASSIGN_OR_RETURN(const auto match, matches.Next());
    if (!match) break;
    if (match->begin > done) RETURN_IF_ERROR(piece(match->begin, false));
    RETURN_IF_ERROR(piece(match->end, true));
    done = match->end;
  }
  if (done < text.size()) RETURN_IF_ERROR(piece(text.size(), false));
  return joiner.Flush();
}

absl::Status PreTokenizer::ForEachPiece(const Metaspace& metaspace, absl::string_view text,
                                        TextStart start, Visit visit) {
  std::string marked = absl::StrReplaceAll(text, {{" ", metaspace.mark}});
  const bool prepend = metaspace.always ? start != TextStart::kContinues
                                        : metaspace.first && start == TextStart::kBegins;
  if (prepend && !absl::StartsWith(marked, metaspace.mark)) marked.insert(0, metaspace.mark);
  if (!metaspace.split) return visit(marked);
  size_t begin = 0;
  while (begin < marked.size()) {
    size_t end = marked.find(metaspace.mark, begin + 1);
    if (end == std::string::npos) end = marked.size();
    RETURN_IF_ERROR(visit(absl::string_view(marked).substr(begin, end - begin)));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::Visited(size_t step, absl::string_view text, TextStart start,
                                   Visit visit) const {
  if (step == steps_.size()) return visit(text);
  TextStart of_piece = start;
  const auto next = [&](absl::string_view piece) {
    return Visited(step + 1, piece, std::exchange(of_piece, TextStart::kAfterToken), visit);
  };
  if (const auto* split = std::get_if<Split>(&steps_[step])) {
    return ForEachPiece(*split, text, next);
  }
  if (const auto* metaspace = std::get_if<Metaspace>(&steps_[step])) {
    return ForEachPiece(*metaspace, text, start, next);
  }
  const bool spaced = absl::StartsWith(text, " ") || start == TextStart::kContinues;
  return spaced ? next(text) : next(absl::StrCat(" ", text));
}

absl::Status PreTokenizer::ForEachWord(absl::string_view text, TextStart start, Visit visit) const {
  return text.empty() ? absl::OkStatus() : Visited(0, text, start, visit);
}

}  // namespace espalier
