#include "common/base/address.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(Address, HostAndPortAreToldApart) {
  EXPECT_EQ(ParseAddress("studio:7070")->host, "studio");
  EXPECT_EQ(ParseAddress("10.0.0.1:0")->port, 0);
  EXPECT_EQ(ParseAddress("[::1]:65535")->host, "::1");
  EXPECT_EQ(ParseAddress("[::1]:65535")->ToString(), "[::1]:65535");
  EXPECT_EQ(ParseAddress("studio:7070")->ToString(), "studio:7070");
}

TEST(Address, WhatIsNoAddressIsRefused) {
  for (const char* text : {"", "studio", "studio:", ":7070", "studio:65536", "studio:-1", "::1:80",
                           "[studio]:80", "studio:7o7o"}) {
    EXPECT_EQ(ParseAddress(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(Address, OnlyLoopbackIsLoopback) {
  for (const char* text : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "::1"}) {
    EXPECT_TRUE(IsLoopback(text)) << text;
  }
  for (const char* text : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.evil.example:1",
                           "localhost.example:1", "128.0.0.1:1", "", "*:1"}) {
    EXPECT_FALSE(IsLoopback(text)) << text;
  }
}

}  // namespace
}  // namespace espalier
