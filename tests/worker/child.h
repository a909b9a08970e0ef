// Child: a program that a test starts, watches and kills. Used by chat_verb_test.cc,
// memory_test.cc and tiny_job.h. One thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace espalier {

class Child {
 public:
  // Starts `command` (looked up in PATH) with both outputs in the file `log`. Root may run mpirun.
  Child(std::vector<std::string> command, const std::string& log);
  ~Child();  // kills and reaps what still runs
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Exit code, or 128 + the signal that ended it; -1 when it did not end in time, and was killed.
  int Wait();
  bool running();
  void Kill();  // SIGKILL
  std::string output() const;

 private:
  pid_t pid_ = -1;
  int code_ = -1;
  std::string log_;
};

// Runs to the end.
struct Ended {
  int code = -1;
  std::string output;
};
Ended RunToEnd(std::vector<std::string> command, const std::string& log);

// Polls until `condition` holds; false when it did not within two minutes or `child` has ended.
bool WaitUntil(Child& child, const std::function<bool()>& condition);

// The built espalier-worker.
std::string WorkerProgram();
// `mpirun -np RANKS ...` for a worker whose arguments follow; the pid of rank R is written to the
// file FOLDER/pid-R.
std::vector<std::string> MpirunWorker(int ranks, const std::string& folder,
                                      const std::vector<std::string>& arguments);

}  // namespace espalier
