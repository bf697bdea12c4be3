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

// NCCL copies on the group's own stream even with one rank, where input and output differ: the copy
// must come after the kernels that write its input, and before those that read its output. Without
// the two events the products below, which take long, would be overtaken; blocks are freed while
// they are in use, and taken again by the next round.
TEST_F(NcclGpuTest, OperationsAreOrderedWithKernelsOfTheCurrentStream) {
  const CommunicatorPtr world = FormWorld();
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  constexpr int64_t kSide = 2048;
  const at::Tensor identity = at::eye(kSide, options);
  at::Tensor total = at::zeros({kSide, kSide}, options);
  double expected = 0;
  for (int round = 1; round <= 50; ++round) {
    at::Tensor in = at::full({kSide, kSide}, static_cast<double>(round), options);
    for (int i = 0; i < 4; ++i) in = at::mm(in, identity);  // slow, and changes nothing
    at::Tensor gathered = at::full_like(in, -1e6), scattered = at::full_like(in, -1e6);
    const WorkPtr gather = world->AllGather(gathered, in);
    const WorkPtr reduce = world->AllReduce(in, ReduceOp::kSum);
    EXPECT_TRUE(gather->Wait().ok());
    // Reads what the last operation wrote, and is on the group's stream itself.
    const WorkPtr scatter = world->ReduceScatter(scattered, gathered, ReduceOp::kSum);
    EXPECT_TRUE(reduce->Wait().ok());
    EXPECT_TRUE(scatter->Wait().ok());
    total.add_(gathered).add_(scattered).add_(in);
    in.fill_(-1e6);  // after the reads of it
    expected += 3 * round;
  }
  EXPECT_EQ(total.min().item<double>(), expected);
  EXPECT_EQ(total.max().item<double>(), expected);
}

// A tensor that its owner lets go while an operation works on it is not handed out again before
// that has ended.
TEST_F(NcclGpuTest, MemoryLivesAsLongAsTheOperation) {
  const CommunicatorPtr world = FormWorld();
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  constexpr int64_t kNumel = int64_t{1} << 24;
  std::vector<at::Tensor> outputs;
  std::vector<WorkPtr> works;
  for (int round = 0; round < 20; ++round) {
    outputs.push_back(at::empty({kNumel}, options));
    at::Tensor in = at::full({kNumel}, static_cast<double>(round), options);
    works.push_back(world->AllGather(outputs.back(), in));
    in.reset();
    at::full({kNumel}, -1e6, options);  // of the same size: takes a free block
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    ASSERT_TRUE(works[i]->Wait().ok());
    EXPECT_EQ(outputs[i].min().item<double>(), static_cast<double>(i));
    EXPECT_EQ(outputs[i].max().item<double>(), static_cast<double>(i));
  }
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
