// What a connection that cannot be made is told as.
#include "common/rpc/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const HostPort kStudio = {"10.77.0.1", 7070};

// macOS answers so for programs that it keeps from the local network, and says nothing else.
TEST(WhyUnreachable, NoRouteOnAMacNamesTheLocalNetworkSetting) {
  const std::string on_mac = WhyUnreachable(kStudio, EHOSTUNREACH, /*on_mac=*/true);
  EXPECT_THAT(on_mac, AllOf(HasSubstr("cannot reach 10.77.0.1:7070"), HasSubstr("Local Network"),
                            HasSubstr("Terminal.app")));
  EXPECT_THAT(WhyUnreachable(kStudio, EHOSTUNREACH, /*on_mac=*/false),
              Not(HasSubstr("Local Network")));
}

TEST(WhyUnreachable, OtherErrorsAreNotLaidToIt) {
  for (const int error : {ECONNREFUSED, ETIMEDOUT, ENETUNREACH}) {
    EXPECT_THAT(WhyUnreachable(kStudio, error, /*on_mac=*/true), Not(HasSubstr("Local Network")));
  }
  EXPECT_THAT(WhyUnreachable(kStudio, ECONNREFUSED, /*on_mac=*/true),
              HasSubstr("nothing listens on 10.77.0.1:7070"));
  EXPECT_THAT(WhyUnreachable(kStudio, ETIMEDOUT, /*on_mac=*/true), HasSubstr("firewall"));
}

}  // namespace
}  // namespace espalier
