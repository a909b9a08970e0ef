// The parser of what mpirun asks for, against what mpirun 4.1 and 5.0 really ask for, and against
// hostile text.
#include "coordinator/agent/daemon_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As mpirun 4.1.4 gives it.
const std::vector<std::string>& FourWords() {
  static const auto& words =
      *new std::vector<std::string>{" orted",
                                    "--daemonize",
                                    "-mca",
                                    "ess",
                                    "\"env\"",
                                    "-mca",
                                    "ess_base_jobid",
                                    "\"660078592\"",
                                    "-mca",
                                    "ess_base_vpid",
                                    "2",
                                    "-mca",
                                    "ess_base_num_procs",
                                    "\"3\"",
                                    "-mca",
                                    "orte_node_regex",
                                    "\"vm,r[1:0]-left,r[1:1]-right@0(3)\"",
                                    "-mca",
                                    "orte_hnp_uri",
                                    "\"660078592.0;tcp://192.0.2.2:45411;tcp6://[fd00::2]:47983\"",
                                    "--mca",
                                    "plm_rsh_agent",
                                    "\"/opt/my programs/espalier-agent exec\"",
                                    "--mca",
                                    "plm_rsh_no_tree_spawn",
                                    "\"1\"",
                                    "--mca",
                                    "oob_tcp_if_include",
                                    "\"127.0.0.0/8\"",
                                    "--mca",
                                    "pml",
                                    "\"ob1\"",
                                    "--mca",
                                    "btl",
                                    "\"tcp,self\"",
                                    "--mca",
                                    "btl_tcp_links",
                                    "\"4\"",
                                    "--mca",
                                    "btl_tcp_if_include",
                                    "\"127.0.0.0/8\"",
                                    "-mca",
                                    "plm",
                                    "\"rsh\"",
                                    "-mca",
                                    "hwloc_base_binding_policy",
                                    "\"none\"",
                                    "-mca",
                                    "rmaps_base_mapping_policy",
                                    "\"seq\"",
                                    "-mca",
                                    "pmix",
                                    "\"^s1,s2,cray,isolated\""};
  return words;
}

// As mpirun 5.0.7 gives it.
const std::vector<std::string>& FiveWords() {
  static const auto& words = *new std::vector<std::string>{
      "PRTE_PREFIX=/usr;export "
      "PRTE_PREFIX;LD_LIBRARY_PATH=/usr/lib:/usr/lib/x86_64-linux-gnu/pmix2/"
      "lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;DYLD_LIBRARY_PATH=/usr/lib:$DYLD_LIBRARY_PATH;"
      "export DYLD_LIBRARY_PATH;/usr/bin/prted",
      "--daemonize",
      "--allow-run-as-root",
      "--prtemca",
      "ess",
      "\"env\"",
      "--prtemca",
      "ess_base_nspace",
      "\"prterun-vm-19828@0\"",
      "--prtemca",
      "ess_base_vpid",
      "1",
      "--prtemca",
      "ess_base_num_procs",
      "\"3\"",
      "--prtemca",
      "prte_hnp_uri",
      "\"prterun-vm-19828@0.0;tcp://192.0.2.2:52379:64,24;tcp6://[fd00::2]:37565:64,24\"",
      "--prtemca",
      "PREFIXES",
      "\"errmgr,ess,filem,if,reachable\"",
      "--prtemca",
      "plm_ssh_agent",
      "\"/usr/bin/espalier-agent exec\"",
      "--prtemca",
      "plm_ssh_no_tree_spawn",
      "\"1\"",
      "--prtemca",
      "pmix_session_server",
      "\"1\"",
      "--prtemca",
      "plm",
      "\"ssh\""};
  return words;
}

std::string Error(const std::vector<std::string>& words) {
  const absl::StatusOr<DaemonCommand> command = ParseDaemonCommand(words);
  if (command.ok()) return "parsed: " + absl::StrJoin(command->arguments, " ");
  EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(command.status().message());
}

std::vector<std::string> FourWith(const std::vector<std::string>& more) {
  std::vector<std::string> words = FourWords();
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(DaemonCommand, WhatMpirun4AsksForIsUnderstood) {
  const absl::StatusOr<DaemonCommand> command = ParseDaemonCommand(FourWords());
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->program, "orted");
  EXPECT_EQ(absl::StrJoin(command->arguments, " "),
            "-mca ess env -mca ess_base_jobid 660078592 -mca ess_base_vpid 2 -mca "
            "ess_base_num_procs 3 -mca orte_node_regex vm,r[1:0]-left,r[1:1]-right@0(3) -mca "
            "orte_hnp_uri 660078592.0;tcp://192.0.2.2:45411;tcp6://[fd00::2]:47983 --mca "
            "plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include 127.0.0.0/8 --mca pml ob1 --mca btl "
            "tcp,self --mca btl_tcp_links 4 --mca btl_tcp_if_include 127.0.0.0/8 -mca plm rsh -mca "
            "hwloc_base_binding_policy none -mca rmaps_base_mapping_policy seq -mca pmix "
            "^s1,s2,cray,isolated");
}

TEST(DaemonCommand, WhatMpirun5AsksForIsUnderstood) {
  const absl::StatusOr<DaemonCommand> command = ParseDaemonCommand(FiveWords());
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->program, "prted");
  EXPECT_EQ(command->arguments.front(), "--leave-session-attached");
  EXPECT_THAT(absl::StrJoin(command->arguments, " "),
              HasSubstr("--prtemca prte_hnp_uri prterun-vm-19828@0.0;tcp://192.0.2.2:52379:64,24;"
                        "tcp6://[fd00::2]:37565:64,24 "));
}

TEST(DaemonCommand, APrefixAndAnOldShellsProfileAreUnderstoodAndNotUsed) {
  std::vector<std::string> words = FourWords();
  words[0] =
      "( test ! -r ./.profile || . ./.profile;          PATH=/usr/bin:$PATH ; export PATH ; "
      "LD_LIBRARY_PATH=/usr/lib:${LD_LIBRARY_PATH:-} ; export LD_LIBRARY_PATH ;   /usr/bin/orted";
  words.push_back(")");
  const absl::StatusOr<DaemonCommand> command = ParseDaemonCommand(words);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->program, "orted");
}

TEST(DaemonCommand, OtherProgramsAreRefused) {
  for (const char* first : {"sh", "/bin/rm", "ortedx", "./orted-", "env", "orted/../sh", "", " "}) {
    std::vector<std::string> words = FourWords();
    words[0] = first;
    EXPECT_THAT(Error(words), HasSubstr("nothing but Open MPI's daemon")) << first;
  }
  EXPECT_THAT(Error({}), HasSubstr("no program"));
}

TEST(DaemonCommand, ShellCharactersAreRefusedWhereverTheyStand) {
  for (const char* hostile : {";",     "; rm -rf /", "| sh",     "& sh",          "&& sh",
                              "`id`",  "$(id)",      "$HOME",    "> /etc/passwd", "< /etc/passwd",
                              "\n id", "\"$(id)\"",  "\"`id`\"", "\"a\"b",        "'a'",
                              "\\",    "\"",         "*",        "~root",         "#",
                              "\x7f",  "\xc3\xa4"}) {
    EXPECT_THAT(Error(FourWith({hostile})), HasSubstr("nothing but Open MPI's daemon")) << hostile;
    EXPECT_THAT(Error(FourWith({"-mca", "btl", hostile})), HasSubstr("nothing but")) << hostile;
    std::vector<std::string> words = FourWords();
    words[0] = absl::StrCat("orted ", hostile);
    EXPECT_THAT(Error(words), HasSubstr("nothing but")) << hostile;
  }
  std::vector<std::string> zero = FourWords();
  zero[0] = std::string("orted\0sh", 8);
  EXPECT_THAT(Error(zero), HasSubstr("nothing but"));
}

TEST(DaemonCommand, OnlyTheVariablesThatSayWhereOpenMpiIsMayBeAssigned) {
  for (const char* assignment : {"LD_PRELOAD=/tmp/evil.so", "export LD_PRELOAD", "PATH=/a sh",
                                 "export PATH=/a", "OMPI_MCA_plm=x", "IFS=x", "=", "export"}) {
    std::vector<std::string> words = FourWords();
    words[0] = absl::StrCat(assignment, " ; orted");
    EXPECT_THAT(Error(words), HasSubstr("not an assignment")) << assignment;
  }
  std::vector<std::string> words = FourWords();
  words[0] = "LD_PRELOAD=/tmp/evil.so orted";
  EXPECT_THAT(Error(words), HasSubstr("not the program"));
}

TEST(DaemonCommand, ParametersThatNameProgramsLibrariesOrFilesAreRefused) {
  for (const char* name :
       {"mca_base_component_path", "mca_component_path", "mca_base_param_files", "orte_fork_agent",
        "prte_fork_agent", "orte_launch_agent", "orte_output_filename", "orte_tmpdir_base",
        "hwloc_base_topo_file", "mca_base_env_list", "ess_singleton_server", "PML", ""}) {
    EXPECT_THAT(Error(FourWith({"-mca", name, "x"})), HasSubstr("nothing but")) << name;
  }
}

std::vector<std::string> FiveWith(const std::vector<std::string>& more) {
  std::vector<std::string> words = FiveWords();
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Homebrew's Open MPI 5 is newer than the one whose words are known here.
TEST(DaemonCommand, AnUnknownFigureOrChoiceOfANewerOpenMpiIsLeftOutAndTold) {
  const absl::StatusOr<DaemonCommand> known = ParseDaemonCommand(FiveWords());
  const absl::StatusOr<DaemonCommand> command = ParseDaemonCommand(FiveWith(
      {"--prtemca", "prte_new_timeout", "\"30\"", "--pmixmca", "ptl_base_new_choice", "true"}));
  ASSERT_TRUE(known.ok() && command.ok()) << command.status();
  EXPECT_EQ(command->arguments, known->arguments);
  EXPECT_THAT(command->left_out, ElementsAre("prte_new_timeout 30", "ptl_base_new_choice true"));
  EXPECT_THAT(known->left_out, IsEmpty());
}

TEST(DaemonCommand, AnythingElseThatIsUnknownIsRefusedOfANewerOpenMpiToo) {
  const std::vector<std::pair<std::string, std::string>> wrong = {{"prte_new_thing", "word"},
                                                                  {"prte_new_thing", "/tmp/1"},
                                                                  {"prte_new_thing", "-1"},
                                                                  {"prte_new_thing", "1x"},
                                                                  {"prte_fork_agent", "1"},
                                                                  {"mca_base_component_path", "1"},
                                                                  {"prte_new_library_folder", "1"},
                                                                  {"pmix_mca_base_env_list", "1"},
                                                                  {"PRTE_Output_To", "1"},
                                                                  {"prte.new", "1"},
                                                                  {"prte_tmpdir_base", "1"},
                                                                  {"prte_launch_now", "true"},
                                                                  {"", "1"}};
  for (const auto& [name, value] : wrong) {
    EXPECT_THAT(Error(FiveWith({"--prtemca", name, value})), HasSubstr("nothing but"))
        << name << " " << value;
  }
  EXPECT_THAT(Error(FiveWith({"--mca", "new_timeout", "30"})), HasSubstr("unknown parameter"));
  EXPECT_THAT(Error(FourWith({"--prtemca", "new_timeout", "30"})), HasSubstr("unknown parameter"));
}

TEST(DaemonCommand, AValueMustBeOfItsParametersKind) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"ess", "/tmp/evil.so"},
      {"btl", "../../tmp/evil"},
      {"ess_base_vpid", "-1"},
      {"ess_base_vpid", "1x"},
      {"btl_tcp_links", ""},
      {"orte_hnp_uri", "file:/tmp/uri"},
      {"orte_hnp_uri", "\"1.0;usock:///tmp/x\""},
      {"orte_hnp_uri", "\"1.0\""},
      {"btl_tcp_if_include", "\"127.0.0.0/8;x\""},
      {"orte_node_regex", "file:/etc/passwd"}};
  for (const auto& [name, value] : wrong) {
    EXPECT_THAT(Error(FourWith({"-mca", name, value})), HasSubstr("nothing but"))
        << name << " " << value;
  }
}

TEST(DaemonCommand, UnknownAndHalfOptionsAreRefused) {
  for (const char* option : {"--hnp", "--report-uri", "--tree-spawn", "-x", "--set-sid", "--prefix",
                             "--debug-daemons-file", "--", "-mca=1"}) {
    EXPECT_THAT(Error(FourWith({option, "ess", "env"})), HasSubstr("unknown option")) << option;
  }
  EXPECT_THAT(Error(FourWith({"-mca"})), HasSubstr("without its value"));
  EXPECT_THAT(Error(FourWith({"-mca", "ess"})), HasSubstr("without its value"));
  EXPECT_THAT(Error({"orted", std::string(100000, 'a')}), HasSubstr("too long"));
}

}  // namespace
}  // namespace espalier
