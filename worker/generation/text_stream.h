// How answers end: StopIds, the ids that end one; TextStream: the text of an answer as its ids
// come, up to the first of some stop strings: what is given away is never taken back, so what may
// become a stop string waits until it has or not. Used by worker/generate_verb.cc,
// worker/chat_verb.cc and worker/serve; StopIds also by worker/open_model.cc,
// worker/job_inputs.cc, worker/rollout and worker/task. One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/tokenizer/stream_decoder.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

// Those of the model (`ends`, of its config.json) and of its tokenizer, and those that end a turn
// of the usual chat templates where the tokenizer has them: config.json often names the end of
// documents alone.
std::vector<int32_t> StopIds(const std::vector<int64_t>& ends, const Tokenizer& tokenizer);

class TextStream {
 public:
  // `tokenizer` must outlive this; no stop string is empty.
  explicit TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops = {})
      : decoder_(tokenizer), stops_(std::move(stops)) {}

  // As StreamDecoder has it.
  void Continue() { decoder_.Continue(); }
  // The text that is certain with this id, which is UTF-8: what may be the beginning of a stop
  // string waits. Nothing of ids that the tokenizer has no token for, as a model may have.
  std::string Append(int32_t id);
  // What is left when no more comes.
  std::string Finish();
  // Whether a stop string came; nothing follows then.
  bool stopped() const { return stopped_; }

 private:
  std::string Release();

  StreamDecoder decoder_;
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace espalier
