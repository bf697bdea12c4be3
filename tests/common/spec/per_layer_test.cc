#include "common/spec/per_layer.h"

#include "spec_fixture.h"

namespace muster {
namespace {

JobSpec Layers(int64_t num_layers) {
  JobSpec spec;
  spec.model.num_layers = num_layers;
  return spec;
}

TEST(PerLayerTest, ExpertsEveryNthLayerFromTheFirstOn) {
  JobSpec spec = Layers(5);
  EXPECT_EQ(ExpertLayers(spec.model), std::vector<bool>(5, false));
  spec.model.num_experts = 4;
  EXPECT_EQ(ExpertLayers(spec.model), std::vector<bool>(5, true));
  spec.model.moe_layer_freq = {2};
  EXPECT_EQ(ExpertLayers(spec.model), (std::vector<bool>{true, false, true, false, true}));
  spec.model.moe_layer_freq = {5};
  EXPECT_EQ(ExpertLayers(spec.model), (std::vector<bool>{true, false, false, false, false}));
}

TEST(PerLayerTest, ExpertsInTheListedLayers) {
  JobSpec spec = Layers(4);
  spec.model.num_experts = 4;
  spec.model.moe_layer_freq = {0, 1, 1, 0};
  EXPECT_EQ(ExpertLayers(spec.model), (std::vector<bool>{false, true, true, false}));
  spec.model.num_layers = 1;
  spec.model.moe_layer_freq = {0};
  EXPECT_EQ(ExpertLayers(spec.model), std::vector<bool>{false});
  spec.model.moe_layer_freq = {1};
  EXPECT_EQ(ExpertLayers(spec.model), std::vector<bool>{true});
}

TEST(PerLayerTest, OneCommunicationTypeIsEveryLayers) {
  JobSpec spec = Layers(3);
  EXPECT_EQ(CpCommTypes(spec), (std::vector<std::string>{"p2p", "p2p", "p2p"}));
  spec.parallel.cp_comm_type = {"a2a", "p2p", "all_gather"};
  EXPECT_EQ(CpCommTypes(spec), spec.parallel.cp_comm_type);
}

TEST(PerLayerTest, OneValueIsAListOfOne) {
  const JobSpec spec = ParsedWith({"parallel.cp_comm_type=all_gather", "model.moe_layer_freq=2",
                                   "model.moe_aux_loss_coeff=0.5"});
  EXPECT_EQ(spec.parallel.cp_comm_type, std::vector<std::string>{"all_gather"});
  EXPECT_EQ(spec.model.moe_layer_freq, std::vector<int64_t>{2});
  EXPECT_EQ(spec.model.moe_aux_loss_coeff, std::vector<double>{0.5});
  // And is written as it was read.
  EXPECT_NE(JobSpecToJson(spec).find("\"moe_layer_freq\": 2,"), std::string::npos);
}

TEST(PerLayerTest, AnEmptyListIsRefused) {
  for (const char* field : {"parallel.cp_comm_type", "model.moe_layer_freq",
                            "model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"}) {
    const ParsedSpec parsed = ParseJobSpec(With({std::string(field) + "=[]"}));
    ASSERT_EQ(parsed.problems.size(), 1u) << field;
    EXPECT_NE(parsed.problems[0].ToString().find("got an empty list"), std::string::npos)
        << parsed.problems[0].ToString();
  }
}

}  // namespace
}  // namespace muster
