// ProgramVersions: the versions of Open MPI and LibTorch, as programs of this machine say them when
// they are asked with --version. Used by coordinator/agent, coordinator/loop and
// coordinator/service. One thread, which never waits: an answer is there when a later look finds
// it, or never.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/platform/process.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

struct ProgramVersionsOptions {
  // Path or name in PATH.
  std::string mpirun = "mpirun";
  std::string worker;
  // A folder where they may write their answers; files "version-N", removed again.
  std::string scratch;
  // Who has not answered by then is ended, and asked once more: the first start of a program has
  // taken 40 s on macOS, which looks at it before.
  absl::Duration limit = absl::Seconds(60);
};

class ProgramVersions {
 public:
  // Asks. A program that cannot be started has no version.
  ProgramVersions(const ProgramVersionsOptions& options, Clock& clock);
  // Ends those that have not answered.
  ~ProgramVersions();
  ProgramVersions(const ProgramVersions&) = delete;
  ProgramVersions& operator=(const ProgramVersions&) = delete;

  // Takes the answers that have come.
  void Look();
  // Whether nothing more will come.
  bool complete() const { return questions_.empty(); }
  // Espalier's own, and what the answers said.
  const v1::NodeVersions& versions() const { return versions_; }

 private:
  struct Question {
    std::string program;
    std::string answer_path;
    std::string (*version_in)(absl::string_view answer);
    std::string* version;
    ProcessIdentity process = {};
    absl::Duration until = {};
    bool ended = false;  // for want of an answer
    bool again = false;  // it is the second time
  };

  // Whether the program could be started.
  bool Ask(Question& question);
  // Whether it is over.
  bool Answered(Question& question);

  const absl::Duration limit_;
  Clock& clock_;
  v1::NodeVersions versions_;
  std::vector<Question> questions_;
};

// "4.1.4" in what `mpirun --version` of Open MPI 4 and 5 says; empty when it is no Open MPI.
std::string OpenMpiVersionIn(absl::string_view answer);
// "2.6.0" in what `espalier-worker --version` says; empty when it says none.
std::string LibTorchVersionIn(absl::string_view answer);

}  // namespace espalier
