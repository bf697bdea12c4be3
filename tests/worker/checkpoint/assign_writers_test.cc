#include "worker/checkpoint/assign_writers.h"

#include <map>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/worker/checkpoint/checkpoint_test_util.h"

namespace muster {
namespace {

// Runs AssignWriters on `size` ranks with the tensors that `held` gives each.
std::vector<std::vector<NamedTensor>> Assign(
    int size, const std::function<std::vector<NamedTensor>(int rank)>& held) {
  std::vector<std::vector<NamedTensor>> out(static_cast<size_t>(size));
  RunRanks(size, [&](Communicator& world) {
    std::vector<NamedTensor> tensors = held(world.rank());
    const absl::Status status = AssignWriters(tensors, at::kCPU, world);
    EXPECT_TRUE(status.ok()) << status;
    out[static_cast<size_t>(world.rank())] = std::move(tensors);
  });
  return out;
}

NamedTensor Whole(const std::string& name, int64_t rows) {
  return {.name = name, .data = at::zeros({rows, 4})};
}

TEST(AssignWritersTest, ReplicasWriteEachTensorOnceAndShareTheWork) {
  const auto ranks = Assign(4, [](int) {
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < 8; ++i) tensors.push_back(Whole("w" + std::to_string(i), 5));
    return tensors;
  });
  std::map<std::string, int> writers;
  for (const auto& tensors : ranks) {
    int written = 0;
    for (const NamedTensor& tensor : tensors) {
      written += tensor.write;
      writers[tensor.name] += tensor.write;
    }
    EXPECT_EQ(written, 2);
  }
  for (const auto& [name, count] : writers) EXPECT_EQ(count, 1) << name;
}

TEST(AssignWritersTest, ShardsAreWrittenByTheirOwnersAndReplicasByOne) {
  // tp 2 (rank % 2), two instances of a distributed optimizer that cuts over pairs of ranks:
  // "split" lies on two tp ranks, "norm" on all, "moment" is a range, the same on rank and rank
  // + 4.
  const auto ranks = Assign(8, [](int rank) {
    return std::vector<NamedTensor>{{.name = "split",
                                     .data = at::zeros({3, 2}),
                                     .global_shape = {3, 4},
                                     .global_offset = {0, 2 * (rank % 2)}},
                                    Whole("norm", 1),
                                    {.name = "moment",
                                     .data = at::zeros({3}),
                                     .global_shape = {3, 4},
                                     .global_offset = {0, 2 * (rank % 2)},
                                     .local_shape = {3, 2},
                                     .flat_begin = 3 * (rank / 2 % 2)}};
  });
  std::multiset<std::pair<std::string, int64_t>> written;  // name, where it begins
  for (const auto& tensors : ranks) {
    for (const NamedTensor& tensor : tensors) {
      if (!tensor.write) continue;
      const int64_t column = tensor.global_offset.empty() ? 0 : tensor.global_offset[1];
      written.insert({tensor.name, 10 * column + tensor.flat_begin});
    }
  }
  EXPECT_EQ(written, (std::multiset<std::pair<std::string, int64_t>>{{"moment", 0},
                                                                     {"moment", 3},
                                                                     {"moment", 20},
                                                                     {"moment", 23},
                                                                     {"norm", 0},
                                                                     {"split", 0},
                                                                     {"split", 20}}));
}

TEST(AssignWritersTest, RanksMayHoldDifferentNumbersOfTensorsOrNone) {
  const auto ranks = Assign(3, [](int rank) {
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < rank; ++i)
      tensors.push_back(Whole("owned by some " + std::to_string(i), 2));
    return tensors;
  });
  int written = 0;
  for (const auto& tensors : ranks)
    for (const NamedTensor& tensor : tensors) written += tensor.write;
  EXPECT_EQ(written, 2);
}

TEST(AssignWritersTest, ATensorThatIsNoSliceFailsTheSaveOnEveryRank) {
  TestRoot root;
  RunRanks(2, [&](Communicator& world) {
    CheckpointState state{.iteration = 1, .tensors = {Whole("w", 2)}};
    if (world.rank() == 1) {
      state.tensors.push_back(
          {.name = "bad", .data = at::zeros({2}), .global_shape = {2}, .global_offset = {1}});
    }
    EXPECT_TRUE(AssignWriters(state.tensors, at::kCPU, world).ok());
    const auto saved = SaveCheckpoint({.root = root.path()}, state, world);
    EXPECT_EQ(saved.status().code(), absl::StatusCode::kInvalidArgument) << saved.status();
  });
}

}  // namespace
}  // namespace muster
