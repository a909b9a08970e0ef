#include "common/base/home.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace espalier {
namespace {

class HomeTest : public ::testing::Test {
 protected:
  HomeTest() {
    if (const char* home = std::getenv("HOME")) saved_ = home;
    setenv("HOME", "/home/ada", 1);
  }
  ~HomeTest() override { setenv("HOME", saved_.c_str(), 1); }

  std::string saved_;
};

TEST_F(HomeTest, OnlyTheStartOfAPathIsExpanded) {
  EXPECT_EQ(*ExpandHome("~/data"), "/home/ada/data");
  EXPECT_EQ(*ExpandHome("~"), "/home/ada");
  EXPECT_EQ(*ExpandHome("/a/~/b"), "/a/~/b");
  EXPECT_EQ(*ExpandHome(""), "");
}

TEST_F(HomeTest, WithoutTheVariableTheUserDatabaseAnswers) {
  unsetenv("HOME");
  const auto path = ExpandHome("~/data");
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(path->front(), '/');
}

TEST_F(HomeTest, AnotherUsersHomeIsRefused) {
  EXPECT_EQ(ExpandHome("~bob/x").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
