// The GPT under DistributedDataParallel: gradients arrive once, in the buffers, as autograd's own.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "test_support.h"
#include "worker/parallel/ddp.h"

namespace muster {
namespace {

TEST(GptDdpTest, TwoMicrobatchesOverTwoStepsEqualAutograd) {
  const TransformerConfig config = TinyConfig();
  const Batch first = RandomBatch(config, 2, 8, 5), second = RandomBatch(config, 2, 8, 6);
  auto plain = MakeModel(config, at::kDouble), wrapped = MakeModel(config, at::kDouble);
  for (const bool overlap : {false, true}) {
    SCOPED_TRACE(overlap);
    const ParallelContext parallel = ParallelContext::SingleProcess();
    auto ddp = DistributedDataParallel::Create({wrapped->parameters()}, DdpGroups::Of(parallel),
                                               {.overlap_grad_reduce = overlap});
    ASSERT_TRUE(ddp.ok()) << ddp.status();
    for (int step = 0; step < 2; ++step) {
      for (const ParameterPtr& p : plain->parameters()) p->data.mutable_grad() = at::Tensor();
      plain->Forward(first, {}).mean().backward();
      plain->Forward(second, {}).mean().backward();
      (*ddp)->ZeroGradBuffer();
      {
        auto no_sync = (*ddp)->no_sync();
        wrapped->Forward(first, {}).mean().backward();
      }
      wrapped->Forward(second, {}).mean().backward();
      ASSERT_TRUE((*ddp)->FinishGradSync(0).ok());
      for (size_t i = 0; i < plain->parameters().size(); ++i) {
        SCOPED_TRACE(plain->parameters()[i]->name);
        EXPECT_LE(
            MaxDifference(plain->parameters()[i]->data.grad(), wrapped->parameters()[i]->main_grad),
            1e-13);
      }
    }
  }
}

}  // namespace
}  // namespace muster
