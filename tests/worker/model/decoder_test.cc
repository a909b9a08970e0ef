// The decoder as a whole: gradients accumulate and become final in flat order, positions see what
// they should, and generation with kept keys equals generation without.
#include "worker/model/decoder.h"

#include "tests/worker/support/tiny_model.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

struct Variant {
  const char* name;
  DecoderConfig config;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

DecoderConfig With(void (*change)(DecoderConfig&)) {
  DecoderConfig config = TinyModelConfig();
  change(config);
  return config;
}

std::vector<Variant> Variants() {
  return {
      {"Plain", TinyModelConfig()},
      {"UntiedHead", With([](DecoderConfig& c) { c.tie_word_embeddings = false; })},
      {"QkNorm", With([](DecoderConfig& c) { c.qk_norm = true; })},
      {"Biases",
       With([](DecoderConfig& c) { c.attention_bias = c.output_bias = c.mlp_bias = true; })},
      {"Window", With([](DecoderConfig& c) { c.sliding_window = 5; })},
      {"WindowOnSomeLayers", With([](DecoderConfig& c) {
         c.qk_norm = true;
         c.sliding_window = 3;
         c.full_attention = {0, 1, 0};
       })},
      {"Gpt2", TinyGpt2Config()},
      {"Gpt2UntiedHead", With([](DecoderConfig& c) {
         c = TinyGpt2Config();
         c.tie_word_embeddings = false;
       })},
  };
}

// Of every id, its own row.
EmbeddingRows WholeLookup(const TinyModel& model) {
  const Tensor rows = model.parameters.Embedding().value.detach().clone().set_requires_grad(true);
  rows.mutable_grad() = torch::zeros_like(rows);
  return {rows, torch::arange(rows.size(0))};
}

double Backward(const TinyModel& model, const Tensor& ids, const Tensor& targets,
                const PassInputs& inputs = {}) {
  const Tensor loss = model.decoder->LossSum(ids, targets, {}, inputs);
  loss.backward();
  return loss.item<double>();
}

class DecoderVariants : public testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(All, DecoderVariants, testing::ValuesIn(Variants()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(DecoderVariants, LossIsMinusTheSumOfTheLogProbabilities) {
  const TinyModel model(GetParam().config);
  const Tensor ids = SomeIds(2, 9, 23);
  Tensor targets = (ids * 3 + 1).remainder(23);
  targets[1][4] = -100;
  const Tensor all = torch::log_softmax(model.decoder->Logits(ids), 2);
  const Tensor expected = all.gather(2, targets.clamp_min(0).unsqueeze(2)).squeeze(2);
  const Tensor got = model.decoder->TargetLogProbabilities(ids, targets);
  EXPECT_LT(LargestDifference(got, expected.masked_fill(targets == -100, 0)), 1e-4);
  EXPECT_NEAR(model.decoder->LossSum(ids, targets).item<double>(), -got.sum().item<double>(), 1e-3);
}

// So many rows, and no more, are asked for their loss.
TEST_P(DecoderVariants, TargetsOfTheLastPositionsCostTheseAlone) {
  const DecoderConfig& config = GetParam().config;
  const Tensor ids = SomeIds(3, 11, 23), targets = (ids * 3 + 1).remainder(23);
  const Tensor last = targets.narrow(1, 7, 4).contiguous();
  Tensor ignoring = targets.clone();
  ignoring.narrow(1, 0, 7).fill_(kIgnoredTarget);
  std::vector<Tensor> losses, gradients;
  std::vector<int64_t> rows;
  for (const Tensor& of : {ignoring, last}) {
    TinyModel model(config);
    rows.push_back(0);
    const RowLoss loss{.weights = {}, .function = [&](const Tensor& log_p, int64_t) {
                         rows.back() += log_p.numel();
                         return RowLoss::Terms{log_p.neg(), torch::full_like(log_p, -1)};
                       }};
    const Tensor sum = model.decoder->LossSum(ids, of, loss);
    sum.backward();
    losses.push_back(sum.detach());
    gradients.push_back(model.parameters.flat_gradient().Only().clone());
  }
  EXPECT_EQ(rows, (std::vector<int64_t>{33, 12}));
  EXPECT_LT(LargestDifference(losses[0], losses[1]), 1e-5);
  EXPECT_LT(LargestDifference(gradients[0], gradients[1]), 1e-5);
  const TinyModel model(config);
  const Tensor all = model.decoder->TargetLogProbabilities(ids, targets, 0.7);
  EXPECT_LT(
      LargestDifference(model.decoder->TargetLogProbabilities(ids, last, 0.7), all.narrow(1, 7, 4)),
      1e-5);
  EXPECT_THROW(model.decoder->LossSum(ids.narrow(1, 0, 3), last), c10::Error);
}

// A bucket may leave as soon as the decoder has told that its prefix is final.
TEST_P(DecoderVariants, GradientsThatAreToldToBeFinalAre) {
  TinyModel model(GetParam().config);
  PassInputs inputs{.lookup = WholeLookup(model)};
  const Tensor ids = SomeIds(2, 9, 23), targets = (ids + 1).remainder(23);
  std::vector<int64_t> ends;
  std::vector<Tensor> seen;
  inputs.gradients_final = [&](int64_t end) {
    ends.push_back(end);
    seen.push_back(model.parameters.flat_gradient().Only().narrow(0, 0, end).clone());
  };
  Backward(model, ids, targets, inputs);
  ASSERT_EQ(ends.size(), 11U);  // head, three times in each of three layers, embedding
  EXPECT_EQ(ends.back(), model.parameters.elements());
  for (size_t i = 0; i < ends.size(); ++i) {
    // Lookups in a tied table have no place of their own in the flat gradient.
    const bool nothing_new = i == 10 && GetParam().config.tie_word_embeddings;
    EXPECT_GT(ends[i] + nothing_new, i == 0 ? 0 : ends[i - 1]);
    EXPECT_TRUE(
        torch::equal(seen[i], model.parameters.flat_gradient().Only().narrow(0, 0, ends[i])));
  }
}

// Positions are added to the table's rows, and run backward where these do not.
TEST(Decoder, OfPositionsAboveAFrozenTableAllIsFinalAtTheEnd) {
  Parameters::Options options = Trained(EmbeddingGradient::kDense);
  options.trained = [](const ParameterShape& shape) { return !shape.is_embedding(); };
  TinyModel model(TinyGpt2Config(), options);
  Tensor seen;
  PassInputs inputs;
  inputs.gradients_final = [&](int64_t end) {
    seen = model.parameters.flat_gradient().Only().narrow(0, 0, end).clone();
  };
  const Tensor ids = SomeIds(2, 9, 23);
  Backward(model, ids, (ids + 1).remainder(23), inputs);
  EXPECT_TRUE(torch::equal(seen, model.parameters.flat_gradient().Only()));
  const Tensor positions = model.parameters.Find("transformer.wpe.weight")->leaf.grad();
  EXPECT_GT(positions.narrow(0, 0, 9).abs().min().item<double>(), 0);
  EXPECT_EQ(positions.narrow(0, 9, 55).abs().max().item<double>(), 0);
}

TEST(Decoder, PositionsBeyondThoseLearnedAreRefused) {
  const TinyModel model(TinyGpt2Config());
  EXPECT_THROW(model.decoder->Logits(SomeIds(1, 65, 23)), c10::IndexError);
  KeyValueCache cache = *model.decoder->MakeCache({.rows = 1, .positions = 65});
  cache.BeginPrompt(0, 64);
  model.decoder->NextLogits(SomeIds(1, 64, 23)[0], cache);
  cache.BeginStep(1);
  EXPECT_THROW(model.decoder->NextLogits(SomeIds(1, 1, 23)[0], cache), c10::IndexError);
}

// Also of layers above and below one that is frozen.
TEST(Decoder, GradientsAroundAFrozenLayerThatAreToldToBeFinalAre) {
  DecoderConfig config = TinyModelConfig();
  config.tie_word_embeddings = false;
  Parameters::Options options = Trained(EmbeddingGradient::kDense);
  options.trained = [](const ParameterShape& shape) { return shape.layer != 1; };
  TinyModel model(config, options);
  const Tensor ids = SomeIds(2, 9, 23), targets = (ids + 1).remainder(23);
  std::vector<std::pair<int64_t, Tensor>> told;
  PassInputs inputs;
  inputs.gradients_final = [&](int64_t end) {
    told.emplace_back(end, model.parameters.flat_gradient().Only().narrow(0, 0, end).clone());
  };
  Backward(model, ids, targets, inputs);
  const Tensor gradient = model.parameters.flat_gradient().Only();
  ASSERT_GT(told.size(), 7U);  // head, three times in each of two layers, embedding
  EXPECT_EQ(told.back().first, gradient.numel());
  for (const auto& [end, seen] : told) {
    EXPECT_TRUE(torch::equal(seen, gradient.narrow(0, 0, end))) << "told of " << end;
  }
  const Tensor lowest = model.parameters.Find("model.layers.0.mlp.up_proj.weight")->leaf.grad();
  EXPECT_GT(lowest.abs().max().item<double>(), 0) << "nothing went through the frozen layer";
}

// The gradient of the rows that are looked up is apart from the rest, and nothing else changes.
TEST_P(DecoderVariants, ALookupTakesTheGradientOfTheEmbedding) {
  TinyModel model(GetParam().config);
  const Tensor ids = SomeIds(2, 9, 23), targets = (ids + 1).remainder(23);
  const double loss = Backward(model, ids, targets);
  const Tensor expected = model.parameters.flat_gradient().Only().clone();
  model.parameters.ZeroGradients();
  // Half of the ids, in an order of their own.
  const Tensor used = std::get<0>(torch::_unique(ids)).flip(0);
  EmbeddingRows lookup{model.parameters.Embedding().value.detach().index_select(0, used),
                       torch::full({23}, -1, torch::kLong)};
  lookup.row_of.index_put_({used}, torch::arange(used.size(0)));
  lookup.rows.set_requires_grad(true).mutable_grad() = torch::zeros_like(lookup.rows);
  EXPECT_EQ(Backward(model, ids, targets, {.lookup = lookup}), loss);
  if (!GetParam().config.tie_word_embeddings) {
    EXPECT_EQ(model.parameters.Embedding().leaf.grad().abs().max().item<double>(), 0);
  }
  model.parameters.Embedding().leaf.mutable_grad().index_add_(0, used, lookup.rows.grad());
  EXPECT_LT(LargestDifference(model.parameters.flat_gradient().Only(), expected),
            1e-6 * expected.abs().max().item<double>());
}

// The last thing that is added to a tied table is the gradient of the first thing it was used for.
TEST(Decoder, OfATiedTableNothingIsFinalBeforeTheEnd) {
  DecoderConfig config = TinyModelConfig();
  config.tie_word_embeddings = true;
  TinyModel model(config);
  std::vector<int64_t> ends;
  const PassInputs inputs{.gradients_final = [&](int64_t end) { ends.push_back(end); }};
  const Tensor ids = SomeIds(2, 9, 23);
  Backward(model, ids, (ids + 1).remainder(23), inputs);
  EXPECT_EQ(ends, std::vector<int64_t>{model.parameters.elements()});
}

// Invariant 1: split invariance, at the level of one rank's micro-batches.
TEST_P(DecoderVariants, SplitInvarianceOfAccumulatedGradients) {
  TinyModel model(GetParam().config);
  const Tensor ids = SomeIds(5, 9, 23), targets = (ids * 5 + 2).remainder(23);
  model.decoder->LossSum(ids, targets).backward();
  const Tensor whole = model.parameters.flat_gradient().Only().clone();
  model.parameters.ZeroGradients();
  for (const auto& [begin, rows] : {std::pair{0, 2}, std::pair{2, 1}, std::pair{3, 2}}) {
    model.decoder->LossSum(ids.narrow(0, begin, rows), targets.narrow(0, begin, rows)).backward();
  }
  EXPECT_LT(LargestDifference(model.parameters.flat_gradient().Only(), whole),
            1e-5 * whole.abs().max().item<double>());
}

TEST_P(DecoderVariants, GradientIsTheSlopeOfTheLoss) {
  TinyModel model(GetParam().config);
  const Tensor ids = SomeIds(2, 9, 23), targets = (ids + 1).remainder(23);
  model.decoder->LossSum(ids, targets).backward();
  torch::NoGradGuard no_grad;
  Tensor flat = model.parameters.flat().Only();
  const Tensor gradient = model.parameters.flat_gradient().Only().clone();
  const Tensor step = gradient * (3e-3 / gradient.norm().item<double>());
  flat.add_(step);
  const double above = model.decoder->LossSum(ids, targets).item<double>();
  flat.sub_(2 * step);
  const double below = model.decoder->LossSum(ids, targets).item<double>();
  const double norm = gradient.norm().item<double>();
  EXPECT_NEAR((above - below) / 6e-3, norm, 0.01 * norm);
}

TEST_P(DecoderVariants, Bf16GivesTheLossAndTheGradientToItsPrecision) {
  TinyModel exact(GetParam().config), narrow(GetParam().config, torch::kBFloat16);
  const Tensor ids = SomeIds(2, 9, 23), targets = (ids + 1).remainder(23);
  const Tensor expected = exact.decoder->LossSum(ids, targets);
  const Tensor loss = narrow.decoder->LossSum(ids, targets);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat);
  EXPECT_NEAR(loss.item<double>() / expected.item<double>(), 1, 0.02);
  expected.backward();
  loss.backward();
  const Tensor gradient = exact.parameters.flat_gradient().Only();
  const Tensor difference = narrow.parameters.flat_gradient().Only() - gradient;
  EXPECT_LT(difference.norm().item<double>(), 0.1 * gradient.norm().item<double>());
}

TEST_P(DecoderVariants, KeptKeysGiveTheSameLogits) {
  const TinyModel model(GetParam().config);
  const Tensor ids = SomeIds(1, 12, 23)[0];
  const Tensor expected = model.decoder->Logits(ids.unsqueeze(0))[0];
  KeyValueCache cache = *model.decoder->MakeCache({.rows = 2, .positions = 12});
  int64_t at = 0;
  for (const int64_t count : {4, 1, 1, 3, 1, 2}) {
    cache.BeginPrompt(1, count);
    const Tensor got = model.decoder->NextLogits(ids.narrow(0, at, count), cache);
    at += count;
    EXPECT_LT(LargestDifference(got[0], expected[at - 1]), 1e-4) << "position " << at - 1;
  }
  EXPECT_EQ(cache.length(1), 12);
  EXPECT_EQ(cache.length(0), 0);
}

// Sequences of lengths of their own, each a row.
TEST_P(DecoderVariants, AStepOfManyRowsGivesTheLogitsOfEach) {
  const TinyModel model(GetParam().config);
  const std::vector<int64_t> lengths = {3, 9, 1};
  KeyValueCache cache = *model.decoder->MakeCache({.rows = 4, .positions = 16});
  const Tensor ids = SomeIds(3, 12, 23);
  for (int64_t row = 0; row < 3; ++row) {
    cache.BeginPrompt(row, lengths[row]);
    model.decoder->Keep(ids[row].narrow(0, 0, lengths[row]), cache);
  }
  for (int64_t step = 0; step < 3; ++step) {
    Tensor next = torch::empty({3}, torch::kLong);
    for (int64_t row = 0; row < 3; ++row) next[row] = ids[row][lengths[row] + step];
    cache.BeginStep(3);
    const Tensor got = model.decoder->NextLogits(next, cache);
    for (int64_t row = 0; row < 3; ++row) {
      const Tensor whole =
          model.decoder->Logits(ids[row].narrow(0, 0, lengths[row] + step + 1).unsqueeze(0));
      EXPECT_LT(LargestDifference(got[row], whole[0][lengths[row] + step]), 1e-4)
          << "row " << row << " step " << step;
    }
  }
}

TEST_P(DecoderVariants, ARowOfAStepHasTheSameBitsWhateverRowsGoAlong) {
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    const TinyModel model(GetParam().config, type);
    const Tensor ids = SomeIds(7, 6, 23);
    const auto step = [&](int64_t rows) {  // that of row 0
      KeyValueCache cache = *model.decoder->MakeCache({.rows = 7, .positions = 16});
      for (int64_t row = 0; row < rows; ++row) {
        cache.BeginPrompt(row, 6 - row % 3);
        model.decoder->Keep(ids[row].narrow(0, 0, 6 - row % 3), cache);
      }
      cache.BeginStep(rows);
      return model.decoder->NextLogits(ids.select(1, 0).narrow(0, 0, rows).contiguous(), cache)[0];
    };
    const Tensor alone = step(1);
    for (const int64_t rows : {2, 4, 5, 7}) EXPECT_TRUE(torch::equal(step(rows), alone)) << rows;
  }
}

TEST(Decoder, NoPositionSeesALaterOne) {
  const TinyModel model(TinyModelConfig());
  const Tensor ids = SomeIds(1, 9, 23);
  Tensor changed = ids.clone();
  changed[0][6] = (changed[0][6].item<int64_t>() + 1) % 23;
  const Tensor a = model.decoder->Logits(ids), b = model.decoder->Logits(changed);
  EXPECT_TRUE(torch::equal(a.narrow(1, 0, 6), b.narrow(1, 0, 6)));
  EXPECT_GT(LargestDifference(a.select(1, 6), b.select(1, 6)), 1e-3);
}

TEST(Decoder, IdsOutsideTheVocabularyAreRefused) {
  const TinyModel model(TinyModelConfig());
  const Tensor ids = SomeIds(1, 4, 23);
  for (const int64_t wrong : {-1, 23, -99}) {
    Tensor bad = ids.clone();
    bad[0][2] = wrong;
    EXPECT_THROW(model.decoder->LossSum(ids, bad), c10::IndexError) << wrong;
    EXPECT_THROW(model.decoder->LossSum(bad, ids), c10::IndexError) << wrong;
  }
  const absl::Status status = CatchTorch("training", [&] { model.decoder->Logits(ids + 20); });
  EXPECT_EQ(status.message(),
            "training: token id 23 is outside the model's vocabulary of 23 ids; was the data "
            "prepared with another tokenizer?");
}

// With one layer, the window alone decides what is seen.
TEST(Decoder, NoPositionSeesBeyondItsWindow) {
  DecoderConfig config = TinyModelConfig();
  config.layers = 1;
  config.sliding_window = 3;
  const TinyModel model(config);
  const Tensor ids = SomeIds(1, 9, 23);
  Tensor changed = ids.clone();
  changed[0][2] = (changed[0][2].item<int64_t>() + 1) % 23;
  const Tensor a = model.decoder->Logits(ids), b = model.decoder->Logits(changed);
  EXPECT_GT(LargestDifference(a.select(1, 4), b.select(1, 4)), 1e-3);
  EXPECT_LT(LargestDifference(a.narrow(1, 5, 4), b.narrow(1, 5, 4)), 1e-6);
}

}  // namespace
}  // namespace espalier
