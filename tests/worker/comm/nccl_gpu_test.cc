// NCCL itself, on one GPU: a world of one joins, splits, runs the conformance suite and aborts.
// Several ranks need several GPUs. Skipped where there is no GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "tests/worker/comm/conformance.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/nccl_group.h"

namespace muster {
namespace {

class NcclGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no GPU";
    api = MakeCudaNcclApi(/*device=*/0);
  }
  CommunicatorPtr FormWorld() {
    auto id = MakeNcclUniqueId(*api);
    EXPECT_TRUE(id.ok()) << id.status();
    auto world = FormNcclWorld({.rank = 0, .size = 1, .unique_id = *id, .api = api});
    EXPECT_TRUE(world.ok()) << world.status();
    return *world;
  }

  const at::Device device{at::kCUDA, 0};
  std::shared_ptr<NcclApi> api;
};

TEST_F(NcclGpuTest, AWorldOfOnePassesTheConformanceSuite) {
  const CommunicatorPtr world = FormWorld();
  Complaints complaints;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    CheckCollectives(*world, dtype, device, complaints);
    CheckPointToPoint(*world, dtype, device, complaints);
  }
  CheckPending(*world, device, complaints);
  CheckChannels(*world, device, complaints);
  CheckSplit(*world, device, complaints);
  CheckRepeatedBits(*world, device, complaints);
  EXPECT_TRUE(complaints.lines().empty()) << absl::StrJoin(complaints.lines(), "\n");
}

// Below the communicator, which would not split a group of one.
TEST_F(NcclGpuTest, SplitsACommunicator) {
  auto family = std::make_shared<NcclFamily>(
      NcclFamily::Options{api, absl::Minutes(1), absl::Minutes(1), absl::Milliseconds(10)});
  NcclId id;
  ASSERT_EQ(api->GetUniqueId(&id), NcclResult::kSuccess);
  const std::vector<int> ranks{0};
  auto world = std::make_shared<NcclGroup>("world", ranks, 0, family.get());
  auto half = std::make_shared<NcclGroup>("half", ranks, 0, family.get());
  family->Add(world);
  family->Add(half);
  absl::Status status = world->Join(id);
  ASSERT_TRUE(status.ok()) << status;
  status = world->Split(kNcclNoColor, 0, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  status = world->Split(/*color=*/3, /*key=*/0, half.get());
  ASSERT_TRUE(status.ok()) << status;
  const at::Tensor in = at::arange(100, at::TensorOptions().dtype(at::kFloat).device(device));
  const at::Tensor out = at::zeros_like(in);
  const WorkPtr work = half->Start(
      {"all_reduce", "float", 100}, {in, out},
      [&](NcclApi& nccl, NcclComm comm, CudaStream stream) {
        return nccl.AllReduce(in.data_ptr(), out.data_ptr(), 100, NcclType::kFloat32,
                              NcclReduction::kSum, comm, stream);
      },
      half, family);
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_TRUE(at::equal(out.cpu(), in.cpu()));
}

TEST_F(NcclGpuTest, AbortEndsTheWorld) {
  const CommunicatorPtr world = FormWorld();
  at::Tensor t = at::ones({1 << 20}, at::TensorOptions().device(device));
  const WorkPtr pending = world->AllReduce(t, ReduceOp::kSum);
  world->Abort("the epoch is over");
  (void)pending->Wait();
  EXPECT_TRUE(absl::IsAborted(world->Barrier()->Wait()));
  // A new world on the same device in the same process.
  const CommunicatorPtr next = FormWorld();
  at::Tensor u = at::ones({10}, at::TensorOptions().device(device));
  EXPECT_TRUE(next->AllReduce(u, ReduceOp::kSum)->Wait().ok());
  EXPECT_EQ(u.sum().item<float>(), 10);
}

}  // namespace
}  // namespace muster
