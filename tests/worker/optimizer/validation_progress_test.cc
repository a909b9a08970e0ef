#include "worker/optimizer/validation_progress.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace espalier {
namespace {

v1::JobSpec Spec(int32_t patience, int32_t plateau_patience = 0, int32_t reductions = 3) {
  v1::JobSpec spec;
  spec.mutable_evaluate()->set_patience(patience);
  spec.mutable_evaluate()->set_min_delta(0.01);
  spec.mutable_train()->mutable_schedule()->set_plateau_patience(plateau_patience);
  spec.mutable_train()->mutable_schedule()->set_plateau_factor(0.5);
  spec.mutable_train()->mutable_schedule()->set_plateau_reductions(reductions);
  return spec;
}

// An evaluation every 10 steps.
ValidationProgress After(const v1::JobSpec& spec, const std::vector<double>& losses) {
  ValidationProgress progress;
  int64_t step = 0;
  for (const double loss : losses) progress.Note(spec, Step(step += 10), loss);
  return progress;
}

TEST(ValidationProgress, PatienceIsCountedInEvaluationsWithoutAGainInARow) {
  const v1::JobSpec spec = Spec(3);
  EXPECT_FALSE(After(spec, {3, 2, 2, 2}).Ends(spec));
  EXPECT_TRUE(After(spec, {3, 2, 2, 2, 2}).Ends(spec));
  EXPECT_FALSE(After(spec, {3, 2, 2, 2, 1.5, 1.6, 1.7}).Ends(spec));
}

TEST(ValidationProgress, WithoutPatienceNothingEnds) {
  const v1::JobSpec spec = Spec(0);
  EXPECT_FALSE(After(spec, std::vector<double>(100, 2)).Ends(spec));
}

TEST(ValidationProgress, AGainIsMoreThanMinDeltaBelowTheBest) {
  const v1::JobSpec spec = Spec(2);
  const ValidationProgress progress = After(spec, {2, 1.995, 1.991});
  EXPECT_TRUE(progress.Ends(spec)) << "each is lower, by less";
  EXPECT_EQ(progress.best(), 2);
  EXPECT_EQ(progress.best_step, 10);
  EXPECT_FALSE(After(spec, {2, 1.995, 1.98}).Ends(spec));
}

TEST(ValidationProgress, ALossThatIsNotFiniteIsNoGain) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const v1::JobSpec spec = Spec(2);
  EXPECT_TRUE(After(spec, {nan, nan}).Ends(spec));
  EXPECT_EQ(After(spec, {nan, 2}).best(), 2);
}

TEST(ValidationProgress, AStepCountsOnce) {
  const v1::JobSpec spec = Spec(2);
  ValidationProgress progress = After(spec, {2, 2});
  const ValidationProgress before = progress;
  progress.Note(spec, Step(20), 2);
  EXPECT_EQ(progress.Fingerprint(), before.Fingerprint());
}

TEST(ValidationProgress, APlateauLowersTheRateUntilItMayNoMore) {
  const v1::JobSpec spec = Spec(0, /*plateau_patience=*/2, /*reductions=*/2);
  EXPECT_EQ(After(spec, {2, 2}).RateFactor(spec), 1);
  EXPECT_EQ(After(spec, {2, 2, 2}).RateFactor(spec), 0.5);
  EXPECT_EQ(After(spec, {2, 2, 2, 2}).RateFactor(spec), 0.5) << "it has its patience again";
  EXPECT_EQ(After(spec, {2, 2, 2, 2, 2}).RateFactor(spec), 0.25);
  EXPECT_EQ(After(spec, std::vector<double>(50, 2)).RateFactor(spec), 0.25);
  EXPECT_EQ(After(spec, {2, 2, 2, 1, 1}).RateFactor(spec), 0.5) << "it stays where it is";
}

TEST(ValidationProgress, EveryFieldIsInTheFingerprint) {
  const v1::JobSpec spec = Spec(2);
  const ValidationProgress progress = After(spec, {2, 1});
  std::vector<ValidationProgress> others(6, progress);
  others[0].step = 30;
  others[1].best_bits += 1;
  others[2].best_step = 10;
  others[3].without_gain = 1;
  others[4].without_gain_at_rate = 1;
  others[5].reductions = 1;
  for (const ValidationProgress& other : others) {
    EXPECT_NE(other.Fingerprint(), progress.Fingerprint());
  }
}

TEST(ValidationProgress, SaysWhyItEnds) {
  const v1::JobSpec spec = Spec(2);
  EXPECT_EQ(After(spec, {2, 2, 2}).WhyItEnds(spec),
            "in 2 evaluations in a row (evaluate.patience) the validation loss was not lower than "
            "2.0000, of step 10, by more than 0.01 (evaluate.min_delta)");
}

}  // namespace
}  // namespace espalier
