// The specs in examples/ are good.
#include "spec_fixture.h"

namespace muster {
namespace {

class ExamplesTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ExamplesTest, IsAGoodSpec) {
  const ParsedSpec parsed =
      ParseJobSpec(ReadFile(std::string(MUSTER_SOURCE_DIR "/examples/") + GetParam()));
  for (const SpecProblem& problem : parsed.problems) ADD_FAILURE() << problem.ToString();
}

INSTANTIATE_TEST_SUITE_P(Files, ExamplesTest,
                         ::testing::Values("demo.json", "fsdp.json", "gpt2-124m.json",
                                           "llama-1b.json", "long-context-cp2.json", "moe-ep2.json",
                                           "tp2-pp2.json"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) {
                             if (c == '-' || c == '.') c = '_';
                           }
                           return name;
                         });

// The published number of parameters.
TEST(ExamplesTest, Gpt2HasTheSizesOfGpt2) {
  const JobSpec spec = ParseJobSpec(ReadFile(MUSTER_SOURCE_DIR "/examples/gpt2-124m.json")).spec;
  const ResolvedSpec sizes = Resolve(spec, 257);
  const int64_t h = spec.model.hidden_size;
  const int64_t f = sizes.ffn_hidden_size;
  const int64_t layer = 4 * h * h + 2 * h * f + 5 * h + f;  // weights and biases
  const int64_t norms = 2 * h * (2 * spec.model.num_layers + 1);
  const int64_t total = spec.model.num_layers * layer + norms +
                        (sizes.vocab_size + sizes.max_position_embeddings) * h;
  EXPECT_EQ(total, 124439808);
  EXPECT_EQ(sizes.padded_vocab_size, 50304);
}

}  // namespace
}  // namespace muster
