// The include graph, on made-up trees.
#include "tests/lint/include_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier::lint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

IncludeGraph GraphOf(const std::map<std::string, std::string>& texts) {
  return IncludeGraph(MadeUpTree(texts));
}

TEST(IncludeGraph, ReachesHeadersThroughHeaders) {
  const IncludeGraph graph = GraphOf({{"a/x.cc", IncludeLine("a/x.h")},
                                      {"a/x.h", IncludeLine("b/y.cuh") + IncludeLine("<map>")},
                                      {"b/y.cuh", ""},
                                      {"b/z.h", ""}});
  EXPECT_THAT(graph.Reach("a/x.cc"), UnorderedElementsAre("a/x.h", "b/y.cuh"));
}

TEST(IncludeGraph, AProgramReachesTheSourcesOfWhatItIncludes) {
  const IncludeGraph graph = GraphOf({{"main.cc", IncludeLine("a/x.h")},
                                      {"a/x.h", ""},
                                      {"a/x.cc", IncludeLine("a/x.h") + IncludeLine("a/y.h")},
                                      {"a/y.h", ""},
                                      {"a/z.h", ""}});
  EXPECT_THAT(graph.ReachOfProgram("main.cc"), UnorderedElementsAre("a/x.h", "a/x.cc", "a/y.h"));
}

TEST(IncludeGraph, AUnitIsAHeaderWithItsSources) {
  const IncludeGraph graph = GraphOf({{"a/x.h", ""},
                                      {"a/x.cc", IncludeLine("a/x.h")},
                                      {"a/x_of_two_words.cc", IncludeLine("a/x.h")},
                                      {"a/x_stranger.cc", ""},
                                      {"a/x_test.cc", IncludeLine("a/x.h")},
                                      {"a/k.h", ""},
                                      {"a/k.cu", IncludeLine("a/k.h")}});
  EXPECT_THAT(graph.UnitsByFolder().at("a"),
              UnorderedElementsAre("a/k", "a/x", "a/x_stranger", "a/x_test"));
}

TEST(IncludeGraph, FindsACircleOfTwoUnitsThroughTheirSources) {
  const IncludeGraph graph = GraphOf({{"a/x.h", ""},
                                      {"a/x.cc", IncludeLine("a/x.h") + IncludeLine("a/y.h")},
                                      {"a/y.h", IncludeLine("a/x.h")}});
  EXPECT_THAT(graph.Cycles(), ElementsAre("a/x, a/y"));
}

TEST(IncludeGraph, TellsTwoCirclesApartAndLeavesOutWhatOnlyLeadsToThem) {
  const IncludeGraph graph = GraphOf({{"a/start.h", IncludeLine("a/1.h")},
                                      {"a/1.h", IncludeLine("a/2.h")},
                                      {"a/2.h", IncludeLine("a/3.h")},
                                      {"a/3.h", IncludeLine("a/1.h") + IncludeLine("a/4.h")},
                                      {"a/4.h", IncludeLine("a/5.h")},
                                      {"a/5.h", IncludeLine("a/4.h")}});
  EXPECT_THAT(graph.Cycles(), ElementsAre("a/1, a/2, a/3", "a/4, a/5"));
}

TEST(IncludeGraph, AHeaderAndItsSourceAreNoCircle) {
  const IncludeGraph graph =
      GraphOf({{"a/x.h", IncludeLine("a/y.h")}, {"a/x.cc", IncludeLine("a/x.h")}, {"a/y.h", ""}});
  EXPECT_THAT(graph.Cycles(), IsEmpty());
}

}  // namespace
}  // namespace espalier::lint
