// The figures of a step are of what there is: none of passes that were not made, or of parts of
// rewards that nothing has.
#include "worker/task/grpo_slots.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace espalier {
namespace {

std::map<std::string, double> Figures(const std::vector<GrpoSlot>& slots, bool reference = true) {
  std::map<std::string, double> figures;
  for (const TaskFigure& one : FiguresOf(slots, 2, reference)) {
    figures[std::string(one.name)] = one.value;
  }
  return figures;
}

// Of 4 tokens; after a pass 2 of them were clipped, at 3 nats each.
GrpoSlot Slot(double reward, int32_t updates) {
  GrpoSlot slot{.tokens = 4, .reward = reward, .updates = updates};
  if (updates > 0) {
    slot.clipped = 2;
    slot.kl = 1;
    slot.surprise = 12;
  }
  return slot;
}

TEST(GrpoFigures, OfPassesThatWereNotMadeThereAreNone) {
  const std::map<std::string, double> none = Figures({Slot(1, 0), Slot(1, 0)});
  EXPECT_EQ(none.at("reward"), 1);
  EXPECT_EQ(none.at("zero_advantage_groups"), 1);
  for (const char* name : {"clip_fraction", "entropy", "kl"}) EXPECT_EQ(none.count(name), 0U);
}

TEST(GrpoFigures, OfPassesAreOverTheTokensThatTheyHaveSeen) {
  const std::map<std::string, double> some =
      Figures({Slot(1, 0), Slot(0, 1), Slot(1, 3), Slot(1, 0)});
  EXPECT_EQ(some.at("clip_fraction"), 0.5);
  EXPECT_EQ(some.at("entropy"), 3);
  EXPECT_EQ(some.at("kl"), 0.25);
  EXPECT_EQ(some.at("completion_tokens"), 4);
  EXPECT_EQ(Figures({Slot(1, 1), Slot(0, 1)}, false).count("kl"), 0U);
}

// As of a program of the user's that has not answered for some completions, the first among them.
TEST(GrpoFigures, APartOfTheRewardIsTheMeanOverThoseThatHaveIt) {
  std::vector<GrpoSlot> slots;
  for (const double format : {-1.0, 0.5, 1.0, -1.0}) {
    Rollout rollout;
    rollout.ids = {1, 2};
    if (format >= 0) rollout.judgement.Add("format", format);
    slots.push_back(SlotOf(rollout, 0, 0, 0));
  }
  const std::map<std::string, double> figures = Figures(slots);
  EXPECT_EQ(figures.at("reward_format"), 0.75);
  EXPECT_EQ(figures.count("reward_feedback"), 0U);
}

TEST(GrpoFigures, WithoutCompletionsThereAreNone) { EXPECT_TRUE(Figures({{}, {}}).empty()); }

}  // namespace
}  // namespace espalier
