// GenerationService: one batch that many requests share: they are handed in by any thread, and one
// thread computes them all. Used by openai_server.h and worker/serve_verb.cc. Submit and Stop: any
// thread; Run: the compute thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/generation/batch_generator.h"
#include "worker/generation/text_stream.h"
#include "worker/serve/answer.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

class GenerationService {
 public:
  struct Options {
    BatchGenerator::Options batch;
    int64_t most_waiting = 64;  // sequences that are in no row yet
    // After Stop, what runs may end within it.
    absl::Duration grace = absl::Seconds(10);
  };
  // `decoder` and `tokenizer` must outlive it.
  static absl::StatusOr<std::unique_ptr<GenerationService>> Create(const Decoder& decoder,
                                                                   const Tokenizer& tokenizer,
                                                                   const Options& options);

  struct Request {
    std::vector<Sequence> sequences;  // one a choice
    std::vector<std::string> stops;
    bool continues = false;  // the text of the prompts, and does not begin one
  };
  // All of a request, or nothing: INVALID_ARGUMENT as BatchGenerator::Check has it,
  // and for more sequences than may wait at all, RESOURCE_EXHAUSTED where too many wait,
  // UNAVAILABLE after Stop.
  absl::StatusOr<std::shared_ptr<Answer>> Submit(Request request);
  // Takes no more; Run returns when what runs has ended, or the grace is over.
  void Stop();
  // Computes until it is stopped. An error: there is no memory. Whatever ends it, nothing is left
  // waiting, and nothing more is taken.
  absl::Status Run();

  int64_t turns() const;  // that were computed so far
  int64_t rows() const;   // answers at a time: fewer than the options say after memory ran out
  const Options& options() const { return options_; }

 private:
  struct Choice {
    std::shared_ptr<Answer> answer;
    int64_t number = 0;
    TextStream text;
  };
  struct Arrived {
    std::shared_ptr<Answer> answer;
    Request request;
  };

  GenerationService(const Decoder& decoder, const Tokenizer& tokenizer, const Options& options,
                    BatchGenerator batch);
  // Waits for work; what arrived meanwhile. Nothing more comes where it says so.
  bool Wait(std::vector<Arrived>& arrived);
  absl::Status RunUntilStopped();
  void Take(Arrived arrived);
  // Those of answers that nobody waits for.
  void CancelAbandoned();
  absl::Status Turn();
  // All that was taken fails, to be asked for again.
  absl::Status TakeFewerRows(const absl::Status& why);
  void End(const Continued& one);
  // What has been taken is told why it does not end.
  void FailAll(const absl::Status& status);

  const Decoder& decoder_;
  const Tokenizer& tokenizer_;
  const Options options_;
  int64_t rows_;  // under mutex_
  // Of the compute thread.
  std::optional<BatchGenerator> batch_;
  std::map<int64_t, std::unique_ptr<Choice>> choices_;  // by the number in the batch
  int64_t next_owner_ = 1;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Arrived> arrived_;
  int64_t unfinished_ = 0;  // sequences
  std::optional<absl::Time> stopped_;
  int64_t turns_ = 0;
};

}  // namespace espalier
