// What a worker of a hand-typed mpirun sets for itself, and what it leaves to who chose.
#include "worker/collective/transport.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace espalier {
namespace {

class MissingParameters : public testing::Test {
 protected:
  MissingParameters() { Clear(); }
  ~MissingParameters() override { Clear(); }

  static std::string Value(const std::string& parameter) {
    const char* value = std::getenv(OpenMpiVariable(parameter).c_str());
    return value == nullptr ? "" : value;
  }
  static void Choose(const std::string& parameter, const char* value) {
    setenv(OpenMpiVariable(parameter).c_str(), value, 1);
  }

 private:
  static void Clear() {
    for (const OpenMpiParameter& parameter : TransportParameters({.networks = "any"})) {
      unsetenv(OpenMpiVariable(parameter.name).c_str());
    }
    unsetenv(OpenMpiVariable("btl_tcp_if_exclude").c_str());
  }
};

TEST_F(MissingParameters, AreSetAndWhatSomebodyChoseIsLeft) {
  Choose("btl", "self,sm");
  SetMissingOpenMpiParameters({.links = 3});
  EXPECT_EQ(Value("btl_tcp_links"), "3");
  EXPECT_EQ(Value("btl"), "self,sm");
  EXPECT_EQ(Value("btl_tcp_if_include"), "");
}

// Open MPI 5 finds no way between two ranks of one machine otherwise.
TEST_F(MissingParameters, LetRanksOfOneHostMeetOnTheLoopback) {
  SetMissingOpenMpiParameters({}, /*one_host=*/true);
  EXPECT_EQ(Value("btl_tcp_if_include"), "127.0.0.0/8");
}

TEST_F(MissingParameters, LeaveTheNetworksThatSomebodyChoseToRanksOfOneHost) {
  Choose("btl_tcp_if_include", "en0");
  SetMissingOpenMpiParameters({}, /*one_host=*/true);
  EXPECT_EQ(Value("btl_tcp_if_include"), "en0");
}

// Open MPI refuses both at once.
TEST_F(MissingParameters, LeaveTheNetworksThatSomebodyExcluded) {
  Choose("btl_tcp_if_exclude", "utun0");
  SetMissingOpenMpiParameters({}, /*one_host=*/true);
  EXPECT_EQ(Value("btl_tcp_if_include"), "");
}

}  // namespace
}  // namespace espalier
