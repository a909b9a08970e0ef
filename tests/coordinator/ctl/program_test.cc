// The real program: what only a process shows. ESPALIER_BIN names the folder of the programs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/ctl/fake_operator.h"

namespace espalier::ctl {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Ran {
  int code;
  std::string output;
};

// Standard output only, unless the command redirects the other.
Ran Shell(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {.code = -1, .output = "popen failed"};
  std::string output;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1, .output = output};
}

class Program : public ::testing::Test {
 protected:
  Program() {
    std::string pattern = fs::temp_directory_path() / "espalier-cli-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    const char* bin = std::getenv("ESPALIER_BIN");
    program_ = absl::StrCat(bin == nullptr ? "." : bin, "/espalier");
  }
  ~Program() override { fs::remove_all(folder_); }

  Ran Espalier(const std::string& arguments) { return Shell(program_ + " " + arguments); }
  std::string Pki(const std::string& arguments) {
    const Ran ran = Espalier(absl::StrCat("pki ", arguments, " --dir ", folder_, "/pki"));
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.output;
    return ran.output;
  }
  TlsFiles Files(const std::string& name) const {
    const std::string stem = folder_ + "/pki/";
    return {
        .ca = stem + "ca.crt", .certificate = stem + name + ".crt", .key = stem + name + ".key"};
  }
  std::string Credentials(const std::string& name) const {
    const TlsFiles files = Files(name);
    return absl::StrCat(" --tls-ca ", files.ca, " --tls-cert ", files.certificate, " --tls-key ",
                        files.key, " ");
  }

  std::string folder_;
  std::string program_;
};

TEST_F(Program, APipeGetsNeitherColoursNorRedrawing) {
  FakeOperator server;
  v1::JobStatus done = RunningJob();
  done.set_state(v1::JOB_STATE_COMPLETED);
  server.script.watched = {RunningJob(), done};
  const Ran ran = Espalier("--coordinator " + server.address() + " watch quick");
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("COMPLETED step 512/1500"));
  EXPECT_THAT(ran.output, Not(HasSubstr("\x1b")));
}

// A terminal, and what is written to it: a thread reads while the command runs, since a terminal
// holds little. (script(1) wants one for itself on some systems.)
Ran OnATerminal(const std::string& command) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  const char* const name = terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0
                               ? ptsname(terminal)
                               : nullptr;
  const int end = name == nullptr ? -1 : open(name, O_RDWR | O_NOCTTY);
  if (end < 0) return {.code = -1, .output = "there is no terminal to be had"};
  std::string output;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;) {
      output.append(buffer, static_cast<size_t>(n));
    }
  });
  const int code = Shell(absl::StrCat("{ ", command, "; } <", name, " >", name, " 2>&1")).code;
  close(end);
  reader.join();  // the last end is closed: what is left has been read
  close(terminal);
  return {.code = code, .output = output};
}

TEST_F(Program, ATerminalGetsAFrameThatIsRedrawnAndNoColorIsRespected) {
  FakeOperator server;
  v1::JobStatus done = RunningJob();
  done.set_state(v1::JOB_STATE_COMPLETED);
  server.script.watched = {done};
  const std::string watch = program_ + " --coordinator " + server.address() + " watch quick";
  const Ran coloured = OnATerminal("TERM=xterm " + watch);
  EXPECT_EQ(coloured.code, 0) << coloured.output;
  EXPECT_THAT(coloured.output, HasSubstr("\x1b[?7l"));
  EXPECT_THAT(coloured.output, HasSubstr("\x1b[32mCOMPLETED\x1b[0m"));
  const Ran plain = OnATerminal("NO_COLOR=1 TERM=xterm " + watch);
  EXPECT_THAT(plain.output, HasSubstr("  COMPLETED"));
  EXPECT_THAT(plain.output, Not(HasSubstr("\x1b[32m")));
}

TEST_F(Program, VerbsOfTheWorkerGoToTheWorkerBesideIt) {
  fs::copy_file(program_, folder_ + "/espalier");
  const std::string copy = folder_ + "/espalier";
  const Ran missing = Shell(copy + " generate 2>&1");
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.output, HasSubstr(folder_ + "/espalier-worker cannot be started"));
  std::ofstream(folder_ + "/espalier-worker") << "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 42\n";
  fs::permissions(folder_ + "/espalier-worker", fs::perms::owner_all);
  const Ran ran = Shell(copy + " generate --prompt 'two words' -x --help");
  EXPECT_EQ(ran.code, 42) << "the worker's exit code is the program's";
  EXPECT_EQ(ran.output, "<generate><--prompt><two words><-x><--help>");
  EXPECT_EQ(Shell(copy + " data prepare --output a b").output, "<data><prepare><--output><a><b>");
}

TEST_F(Program, GlobalOptionsAreRefusedWhereTheyWouldNotBeObeyed) {
  for (const char* arguments :
       {"-o json generate --prompt x", "generate --prompt x -o json", "generate --output=json",
        "generate --coordinator /tmp", "--timeout 3 data inspect x", "data inspect x -o json"}) {
    const Ran ran = Espalier(absl::StrCat(arguments, " 2>&1"));
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_THAT(ran.output, HasSubstr("is for verbs that ask espalierd")) << arguments;
    EXPECT_THAT(ran.output, HasSubstr("leave it out")) << arguments;
  }
}

TEST_F(Program, CertificatesOfPkiLetEachRoleDoItsPart) {
  Pki("init --name 'Lab CA'");
  Pki("issue coordinator --role coordinator --address 127.0.0.1");
  for (const char* role : {"operator", "viewer", "worker"}) {
    Pki(absl::StrCat("issue ", role, " --role ", role));
  }
  FakeOperator server("127.0.0.1:0", Files("coordinator"));
  const auto run = [&](const std::string& name, const std::string& verb) {
    return Espalier("--coordinator " + server.address() + Credentials(name) + verb + " 2>&1");
  };
  EXPECT_EQ(run("operator", "pause ab").code, 0);
  EXPECT_EQ(run("viewer", "jobs").code, 0);
  const Ran pause = run("viewer", "pause ab");
  EXPECT_EQ(pause.code, 6);
  EXPECT_EQ(
      pause.output,
      "espalier: certificate \"viewer\" has the role viewer; Pause needs the role operator\n");
  const Ran worker = run("worker", "jobs");
  EXPECT_EQ(worker.code, 6);
  EXPECT_THAT(worker.output, HasSubstr("has the role worker; ListJobs needs the role operator"));
  const Ran bare = Espalier("--coordinator " + server.address() + " jobs 2>&1");
  EXPECT_EQ(bare.code, 6);
  EXPECT_THAT(bare.output, HasSubstr("speaks TLS: give the CA"));
}

TEST_F(Program, PkiKeepsWhatIsThereAndShowsIt) {
  Pki("init");
  Pki("issue ann --role operator --address 10.0.0.7 --days 2");
  const Ran again = Espalier("pki issue ann --role viewer --dir " + folder_ + "/pki 2>&1");
  EXPECT_EQ(again.code, 4);
  EXPECT_THAT(again.output, HasSubstr("ann.crt exists and was left as it is; --force replaces it"));
  const Ran shown = Espalier("-o json pki show " + Files("ann").certificate);
  const auto certificate = nlohmann::json::parse(shown.output)["certificates"][0];
  EXPECT_EQ(certificate["role"], "operator");
  EXPECT_EQ(certificate["addresses"][0], "10.0.0.7");
  Pki("issue ann --role viewer --force");
  EXPECT_THAT(Espalier("pki show " + Files("ann").certificate).output, HasSubstr("viewer"));
  EXPECT_EQ(Espalier("pki issue ca --role viewer --dir " + folder_ + "/pki 2>&1").code, 2);
  EXPECT_EQ(Espalier("pki show " + folder_ + "/none.crt 2>&1").code, 3);
  EXPECT_EQ(Espalier("pki issue x --role viewer --dir " + folder_ + "/none 2>&1").code, 6);
}

// The bash of macOS, 3.2, reads nothing from `source <(...)`, and says nothing.
TEST_F(Program, NobodyIsToldToSourceACompletionOfBashFromAPipe) {
  for (const char* words : {"completion --help", "completion bash --help", "completion bash"}) {
    const std::string output = Espalier(words).output;
    EXPECT_THAT(output, HasSubstr("eval \"$(espalier completion bash)\"")) << words;
    EXPECT_THAT(output, testing::Not(HasSubstr("source <(espalier completion bash"))) << words;
  }
}

class Completion : public Program {
 protected:
  // What bash offers after the words, the last of which is being typed.
  std::string Bash(const std::string& words, int cursor, const std::string& coordinator = "") {
    std::ofstream(folder_ + "/test.bash")
        << "set -eu\nPATH=" << bin_ << ":$PATH\n"
        << "_espalier_seconds=60\nexport ESPALIER_COORDINATOR="
        << (coordinator.empty() ? "127.0.0.1:1" : coordinator)
        << "\neval \"$(espalier completion bash)\"\ncomplete -p espalier > /dev/null\n"
        << "COMP_WORDS=(espalier " << words << ")\nCOMP_CWORD=" << cursor
        << "\n_espalier\necho ${COMPREPLY[@]+\"${COMPREPLY[@]}\"}\n";
    const Ran ran = Shell("bash " + folder_ + "/test.bash 2>&1");
    EXPECT_EQ(ran.code, 0) << ran.output;
    return ran.output;
  }
  // From now on beside an espalier-worker that has this to say of each verb.
  void PutBesideAWorker(const std::string& help) {
    fs::copy_file(program_, folder_ + "/espalier");
    std::ofstream(folder_ + "/espalier-worker") << "#!/bin/sh\necho \"Of $1 $2:\"\ncat << EOF\n"
                                                << help << "EOF\n";
    fs::permissions(folder_ + "/espalier-worker", fs::perms::owner_all);
    bin_ = folder_;
  }

  std::string bin_ = fs::path(program_).parent_path().string();
};

TEST_F(Completion, BashAsksTheWorkerForTheOptionsOfItsVerbs) {
  PutBesideAWorker(
      "Options:\n  -h,--help                   Print this help message and exit\n"
      "  --checkpoint TEXT REQUIRED  Checkpoint, or --any folder\n  --top-k INT [0]  Only\n");
  EXPECT_EQ(Bash("generate --", 2), "--help --checkpoint --top-k\n");
  EXPECT_EQ(Bash("generate --checkpoint x --to", 4), "--top-k\n");
  EXPECT_EQ(Bash("data ''", 2), "prepare inspect preview tokenizer --help --checkpoint --top-k\n");
  EXPECT_EQ(Bash("data prepare --ch", 3), "--checkpoint\n");
  EXPECT_EQ(Bash("data prepare --output ''", 4), "\n") << "bash completes a file itself";
}

TEST_F(Completion, BashKnowsVerbsAndOptions) {
  EXPECT_EQ(Bash("pa", 1), "pause\n");
  EXPECT_EQ(Bash("-o json eve", 3), "events\n");
  EXPECT_EQ(Bash("pause ab --ha", 3), "--hard\n");
  EXPECT_EQ(Bash("jobs --tls-", 2), "--tls-ca --tls-cert --tls-key\n");
  EXPECT_EQ(Bash("pki is", 2), "issue\n");
  EXPECT_EQ(Bash("pki issue ann --ro", 4), "--role\n");
  EXPECT_EQ(Bash("pki issue ann --role vi", 5), "viewer\n");
  EXPECT_EQ(Bash("jobs -o ''", 3), "table json\n");
  EXPECT_EQ(Bash("job val", 2), "validate\n");
  EXPECT_EQ(Bash("submit --set x", 3), "\n") << "bash completes a file itself";
}

TEST_F(Completion, BashAsksTheCoordinatorForJobs) {
  FakeOperator server;
  *server.script.jobs.add_jobs() = RunningJob();
  EXPECT_EQ(Bash("watch 3f", 2, server.address()), "3f2a9c1e\n");
  EXPECT_EQ(Bash("pause --hard 3f", 3, server.address()), "3f2a9c1e\n");
}

TEST_F(Completion, ZshAcceptsItsScriptAndFindsWords) {
  std::ofstream(folder_ + "/test.zsh")
      << "emulate -R zsh\nset -eu\nPATH=" << fs::path(program_).parent_path().string()
      << ":$PATH\ncompadd() { [[ $1 == -- ]] && shift; print -r -- \"$@\"; }\n_files() { : }\n"
      << "source <(espalier completion zsh)\n"
      << "words=(espalier -o json pki issue ann --d)\nCURRENT=7\n_espalier\n";
  const Ran parsed = Shell(program_ + " completion zsh > " + folder_ + "/_espalier && zsh -n " +
                           folder_ + "/_espalier 2>&1");
  EXPECT_EQ(parsed.code, 0) << parsed.output;
  const Ran ran = Shell("zsh -f " + folder_ + "/test.zsh 2>&1");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("--dir"));
  EXPECT_THAT(ran.output, HasSubstr("--days"));
  EXPECT_THAT(ran.output, Not(HasSubstr("--hard")));
}

}  // namespace
}  // namespace espalier::ctl
