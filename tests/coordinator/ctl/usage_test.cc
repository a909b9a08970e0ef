// The command line itself: help, mistakes, global options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/ctl/fake_operator.h"

namespace espalier::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Mistake {
  const char* name;
  std::vector<std::string> arguments;
  const char* message;
};

class Mistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreExplainedOnStandardErrorWithExitCode2) {
  const CliResult result = RunCli(GetParam().arguments);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.remarks, StartsWith("espalier: "));
  EXPECT_THAT(result.remarks, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Usage, Mistakes,
    ::testing::Values(
        Mistake{"NoVerb", {}, "subcommand is required"},
        Mistake{"UnknownVerb", {"wacth", "3f"}, "unknown verb 'wacth'; did you mean 'watch'?"},
        Mistake{"UnknownVerbAfterOptions", {"-o", "json", "jbos"}, "did you mean 'jobs'?"},
        Mistake{"MissingJob", {"pause"}, "JOB is required"},
        Mistake{"MissingJobOfJob", {"job"}, "JOB is required"},
        Mistake{"MissingFile", {"submit"}, "FILE is required"},
        Mistake{"UnknownOption", {"jobs", "--frob"}, "--frob"},
        Mistake{"BadOutput", {"jobs", "-o", "xml"}, "xml"},
        Mistake{"BadTimeout", {"jobs", "--timeout", "-3"}, "--timeout"},
        Mistake{"BadRank", {"logs", "3f", "--rank", "two"}, "--rank"},
        Mistake{"OneTlsFile", {"jobs", "--tls-ca", "ca.crt"}, "all three or none"},
        Mistake{"BadAddress", {"--coordinator", "studio", "jobs"}, "'studio' has no port"},
        Mistake{"NodeWithoutAddress", {"nodes", "add", "mini"}, "--address"},
        Mistake{"BadRole", {"pki", "issue", "ann", "--role", "boss"}, "role 'boss' is unknown"}),
    [](const auto& test) { return test.param.name; });

TEST(Usage, EveryVerbHasAnExample) {
  const std::vector<std::vector<std::string>> verbs = {{},
                                                       {"submit"},
                                                       {"validate"},
                                                       {"jobs"},
                                                       {"job"},
                                                       {"watch"},
                                                       {"pause"},
                                                       {"resume"},
                                                       {"cancel"},
                                                       {"checkpoint"},
                                                       {"nodes"},
                                                       {"nodes", "add"},
                                                       {"nodes", "drain"},
                                                       {"nodes", "allow"},
                                                       {"nodes", "forget"},
                                                       {"logs"},
                                                       {"events"},
                                                       {"pki"},
                                                       {"pki", "init"},
                                                       {"version"},
                                                       {"pki", "issue"},
                                                       {"pki", "show"},
                                                       {"completion"},
                                                       {"reference"},
                                                       {"reference", "job"},
                                                       {"completion", "bash"},
                                                       {"completion", "zsh"},
                                                       {"job", "validate"}};
  for (std::vector<std::string> arguments : verbs) {
    const std::string verb = arguments.empty() ? "" : arguments[0];
    arguments.push_back("--help");
    const CliResult result = RunCli(arguments);
    EXPECT_EQ(result.code, 0) << verb;
    EXPECT_THAT(result.out, HasSubstr("example:\n  ")) << verb;
    EXPECT_THAT(result.out, HasSubstr("espalier " + verb)) << verb;
    EXPECT_THAT(result.remarks, IsEmpty()) << verb;
  }
}

TEST(Usage, GlobalOptionsMayStandBeforeOrAfterTheVerb) {
  FakeOperator server;
  EXPECT_EQ(RunCli({"--coordinator", server.address(), "-o", "json", "jobs"}).code, 0);
  EXPECT_EQ(RunCli({"jobs", "--coordinator", server.address(), "--output=json"}).code, 0);
}

TEST(Usage, TheEnvironmentNamesTheCoordinatorAndTheCommandLineOverrulesIt) {
  FakeOperator server;
  setenv("ESPALIER_COORDINATOR", server.address().c_str(), 1);
  EXPECT_EQ(RunCli({"jobs"}).code, 0);
  EXPECT_EQ(RunCli({"jobs", "--coordinator", "127.0.0.1:1"}).code, 5);
  unsetenv("ESPALIER_COORDINATOR");
}

TEST(Usage, TheReferenceNamesEveryKey) {
  EXPECT_THAT(RunCli({"reference", "job"}).out, HasSubstr("train.schedule.warmup_steps"));
  EXPECT_THAT(RunCli({"reference", "cluster"}).out, HasSubstr("launcher.remote_shell"));
}

TEST(Usage, VersionIsAWordAnOptionAndAKey) {
  for (const char* asked : {"version", "--version"}) {
    const CliResult result = RunCli({asked});
    EXPECT_EQ(result.code, 0) << result.remarks;
    EXPECT_THAT(result.out, StartsWith("espalier " ESPALIER_VERSION " (gRPC "));
  }
  EXPECT_THAT(RunCli({"version", "-o", "json"}).out, HasSubstr("\"version\": \""));
}

}  // namespace
}  // namespace espalier::ctl
