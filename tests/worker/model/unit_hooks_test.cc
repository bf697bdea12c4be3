// When hooks around a chunk's units are called, in all forms of recomputation, and that they change
// no bit.

#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "test_support.h"

namespace muster {
namespace {

using testing::ElementsAre;

// F0 f0: unit 0's forward pass; B0 b0: its backward pass.
class Recorder final : public UnitHooks {
 public:
  explicit Recorder(bool closes_units = false, std::string name = "",
                    std::vector<std::string>* log = nullptr)
      : closes_units_(closes_units), name_(std::move(name)), log_(log == nullptr ? &own_ : log) {}
  void BeforeForward(int unit) override { Add("F", unit); }
  void AfterForward(int unit) override { Add("f", unit); }
  void BeforeBackward(int unit) override { Add("B", unit); }
  void AfterBackward(int unit) override { Add("b", unit); }
  bool closes_units() const override { return closes_units_; }
  std::string Take() { return absl::StrJoin(std::exchange(*log_, {}), " "); }

 private:
  void Add(const char* what, int unit) { log_->push_back(absl::StrCat(name_, what, unit)); }
  const bool closes_units_;
  const std::string name_;
  std::vector<std::string> own_;
  std::vector<std::string>* const log_;
};

TransformerConfig Config(RecomputeMode mode = RecomputeMode::kNone, int64_t num_layers = 1) {
  TransformerConfig config = TinyConfig();
  config.num_layers = 3;
  config.hidden_dropout = config.attention_dropout = 0.2;
  config.recompute = mode;
  config.recompute_num_layers = num_layers;
  return config;
}

std::string Pass(GptModel& model, const TransformerConfig& config, Recorder& recorder) {
  const at::Tensor loss = model.Forward(RandomBatch(config, 2, 8, 5), {}).mean();
  loss.backward();
  return recorder.Take();
}

TEST(UnitHooksTest, LayersAreUnitsAndTheRestBelongsToNone) {
  const auto model = MakeModel(Config(), at::kFloat);
  std::map<int, int> counts;
  for (const ParameterPtr& p : model->parameters()) {
    ++counts[p->unit];
    const bool in_layer = p->name.find("decoder.layers.") == 0;
    EXPECT_EQ(p->unit, in_layer ? p->name[15] - '0' : -1) << p->name;
  }
  EXPECT_EQ(counts[0], 12);
  EXPECT_EQ(counts[-1], 4);  // two tables of the embedding, the final norm
}

TEST(UnitHooksTest, TheOrderOfAStepAndOfRecomputations) {
  const struct {
    RecomputeMode mode;
    int64_t num_layers;
    const char* expected;
  } rows[] = {
      {RecomputeMode::kNone, 1, "F0 f0 F1 f1 F2 f2 B2 b2 B1 b1 B0 b0"},
      {RecomputeMode::kSelective, 1, "F0 f0 F1 f1 F2 f2 B2 b2 B1 b1 B0 b0"},
      {RecomputeMode::kUniform, 1, "F0 f0 F1 f1 F2 f2 B2 F2 f2 b2 B1 F1 f1 b1 B0 F0 f0 b0"},
      {RecomputeMode::kUniform, 2, "F0 f0 F1 f1 F2 f2 B2 F2 f2 b2 B1 F0 f0 F1 f1 b1 B0 b0"},
      {RecomputeMode::kBlock, 1, "F0 f0 F1 f1 F2 f2 B2 b2 B1 b1 B0 F0 f0 b0"},
  };
  for (const auto& row : rows) {
    for (const bool closes : {false, true}) {
      SCOPED_TRACE(absl::StrCat(row.expected, closes ? " closed" : ""));
      const TransformerConfig config = Config(row.mode, row.num_layers);
      const auto model = MakeModel(config, at::kFloat);
      Recorder recorder(closes);
      ASSERT_TRUE(model->AddUnitHooks(&recorder));
      EXPECT_EQ(Pass(*model, config, recorder), row.expected);
    }
  }
}

TEST(UnitHooksTest, WithoutGradientsOnlyTheForwardPassIsTold) {
  const TransformerConfig config = Config();
  const auto model = MakeModel(config, at::kFloat);
  Recorder recorder(/*closes_units=*/true);
  model->AddUnitHooks(&recorder);
  model->SetTraining(false);
  at::NoGradGuard no_grad;
  model->Forward(RandomBatch(config, 2, 8, 5), {});
  EXPECT_EQ(recorder.Take(), "F0 f0 F1 f1 F2 f2");
}

TEST(UnitHooksTest, SeveralAreCalledInsideOneAnotherUntilTheyAreTakenAway) {
  const TransformerConfig config = Config();
  const auto model = MakeModel(config, at::kFloat);
  std::vector<std::string> log;
  Recorder outer(false, "o", &log), inner(false, "i", &log);
  model->AddUnitHooks(&outer);
  model->AddUnitHooks(&inner);
  Pass(*model, config, outer);
  model->Forward(RandomBatch(config, 2, 8, 5), {}).mean().backward();
  EXPECT_EQ(std::vector<std::string>(log.begin(), log.begin() + 4),
            (std::vector<std::string>{"oF0", "iF0", "if0", "of0"}));
  EXPECT_EQ(std::vector<std::string>(log.end() - 4, log.end()),
            (std::vector<std::string>{"oB0", "iB0", "ib0", "ob0"}));
  log.clear();
  model->AddUnitHooks(nullptr);
  model->Forward(RandomBatch(config, 2, 8, 5), {}).mean().backward();
  EXPECT_TRUE(log.empty());
}

// With closed units each parameter's gradient arrives between its unit's backward calls.
TEST(UnitHooksTest, ClosedUnitsHaveTheirGradientsBetweenTheirCalls) {
  struct Sink final : public GradSink, public UnitHooks {
    void BeforeForward(int) override {}
    void AfterForward(int) override {}
    void BeforeBackward(int unit) override { open = unit; }
    void AfterBackward(int unit) override {
      EXPECT_EQ(open, unit);
      open = -1;
    }
    bool closes_units() const override { return true; }
    void GradReady(Parameter& p) override {
      ++arrived;
      EXPECT_EQ(p.unit, open) << p.name;
    }
    int open = -1, arrived = 0;
  };
  for (const RecomputeMode mode :
       {RecomputeMode::kNone, RecomputeMode::kUniform, RecomputeMode::kBlock}) {
    const TransformerConfig config = Config(mode, 2);
    const auto model = MakeModel(config, at::kFloat);
    AttachMainGrads(model->parameters(), at::kFloat);
    Sink sink;
    for (const ParameterPtr& p : model->parameters()) p->sink = &sink;
    model->AddUnitHooks(&sink);
    model->Forward(RandomBatch(config, 2, 8, 5), {}).mean().backward();
    EXPECT_GE(sink.arrived, static_cast<int>(model->parameters().size()));
  }
}

TEST(UnitHooksTest, HooksChangeNoBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kUniform}) {
      std::vector<at::Tensor> expected;
      for (const int form : {0, 1, 2}) {  // none, open units, closed units
        const TransformerConfig config = Config(mode, 2);
        const auto model = MakeModel(config, dtype);
        AttachMainGrads(model->parameters(), dtype == at::kDouble ? dtype : at::kFloat);
        Recorder recorder(form == 2);
        if (form > 0) model->AddUnitHooks(&recorder);
        std::vector<at::Tensor> got;
        for (const uint64_t seed : {5, 6}) {
          const at::Tensor loss = model->Forward(RandomBatch(config, 2, 8, seed), {}).mean();
          loss.backward();
          got.push_back(loss.detach());
        }
        for (const ParameterPtr& p : model->parameters()) got.push_back(p->main_grad);
        if (form == 0) expected = got;
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(at::equal(got[i], expected[i])) << form << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace muster
