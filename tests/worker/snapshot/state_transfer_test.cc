#include "worker/snapshot/state_transfer.h"

#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/comm/self_communicator.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

NamedTensor Whole(const std::string& name, at::Tensor data) {
  return {.name = name, .data = std::move(data)};
}
// Elements [begin, begin + data.numel()) of the whole tensor of `shape`.
NamedTensor Flat(const std::string& name, at::Tensor data, std::vector<int64_t> shape,
                 int64_t begin) {
  return {.name = name,
          .data = std::move(data),
          .global_shape = shape,
          .local_shape = shape,
          .flat_begin = begin};
}
at::Tensor Values(std::vector<int64_t> shape, at::ScalarType type = at::kFloat, int64_t from = 1) {
  return at::arange(from, from + c10::multiply_integers(shape), at::kDouble).to(type).view(shape);
}

TEST(StateTransferTest, OneIsFilledFromReplicasBitForBit) {
  const at::Tensor weights = at::randn({37, 5}), moments = at::randn({101}, at::kDouble);
  RunRanks(3, [&](CommunicatorPtr world) -> absl::Status {
    TransferRequest request;
    at::Tensor w = at::full({37, 5}, -1.0f), m = at::full({101}, -1.0, at::kDouble);
    if (world->rank() == 1) {
      request.wants = {Whole("w", w), Whole("m", m)};
      request.wants_texts = {"common"};
      request.likes_texts = {"also", "nobody's"};
    } else {
      request.gives = {Whole("w", weights), Whole("m", moments)};
      request.gives_texts = {{"common", "{\"iteration\": 7}"}};
      if (world->rank() == 2) request.gives_texts["also"] = "of 2";
    }
    const auto result = TransferState(request, *world);
    if (!result.ok()) return result.status();
    EXPECT_EQ(result->bytes_moved, 37 * 5 * 4 + 101 * 8);
    if (world->rank() == 1) {
      EXPECT_TRUE(at::equal(w, weights));
      EXPECT_TRUE(at::equal(m, moments));
      EXPECT_EQ(result->texts.at("common"), "{\"iteration\": 7}");
      EXPECT_EQ(result->texts.at("also"), "of 2");
      EXPECT_FALSE(result->texts.contains("nobody's"));
      EXPECT_EQ(result->bytes_received, result->bytes_moved);
    } else {
      EXPECT_GT(result->bytes_sent, 0) << "the replicas share the work";
      EXPECT_TRUE(result->texts.empty());
    }
    return absl::OkStatus();
  });
}

TEST(StateTransferTest, WhatIsInPlaceIsNotTouchedAndOwnMemoryNotSent) {
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    at::Tensor here = Values({4}), filled = at::zeros({4});
    TransferRequest request;
    request.gives = {Whole("a", here), Whole("b", here)};
    request.wants = {Whole("a", here), Whole("b", filled)};
    request.gives_texts = {{"rng", absl::StrCat("of ", world->rank())}};
    request.wants_texts = {"rng"};
    const auto result = TransferState(request, *world);
    if (!result.ok()) return result.status();
    EXPECT_EQ(result->bytes_moved, 0);
    EXPECT_EQ(result->bytes_copied, 16);
    EXPECT_TRUE(at::equal(filled, here));
    EXPECT_EQ(result->texts.at("rng"), absl::StrCat("of ", world->rank()));
    return absl::OkStatus();
  });
}

// Shards of three members become shards of two, in messages that are far smaller than the state.
TEST(StateTransferTest, FlatRangesMoveToAnotherLayoutInBoundedMessages) {
  const at::Tensor whole = Values({600, 50});
  RunRanks(3, [&](CommunicatorPtr world) -> absl::Status {
    const int64_t rank = world->rank();
    const at::Tensor flat = whole.view({-1});
    TransferRequest request;
    request.max_bytes_in_flight = 20 << 10;
    request.gives = {
        Flat("w", flat.narrow(0, rank * 10000, 10000).clone(), {600, 50}, rank * 10000)};
    at::Tensor mine = at::zeros({15000});
    if (rank < 2) request.wants = {Flat("w", mine, {600, 50}, rank * 15000)};
    const auto result = TransferState(request, *world);
    if (!result.ok()) return result.status();
    if (rank < 2) {
      EXPECT_TRUE(at::equal(mine, flat.narrow(0, rank * 15000, 15000)));
    }
    EXPECT_EQ(result->bytes_moved, (5000 + 10000) * 4);
    return absl::OkStatus();
  });
}

TEST(StateTransferTest, ColumnShardsStridesAndDtypesConvert) {
  const at::Tensor whole = Values({6, 8}, at::kBFloat16);
  RunRanks(3, [&](CommunicatorPtr world) -> absl::Status {
    const int rank = world->rank();
    TransferRequest request;
    at::Tensor transposed = at::zeros({8, 6}).t(), rows = at::zeros({2, 8}, at::kDouble);
    if (rank < 2) {
      // Not contiguous: half of the columns, as they lie in the whole.
      request.gives = {{.name = "w",
                        .data = whole.narrow(1, rank * 4, 4),
                        .global_shape = {6, 8},
                        .global_offset = {0, rank * 4}}};
    } else {
      request.wants = {
          Whole("w", transposed),
          {.name = "w", .data = rows, .global_shape = {6, 8}, .global_offset = {3, 0}}};
    }
    const auto result = TransferState(request, *world);
    if (!result.ok()) return result.status();
    if (rank == 2) {
      EXPECT_TRUE(at::equal(transposed, whole.to(at::kFloat)));
      EXPECT_TRUE(at::equal(rows, whole.narrow(0, 3, 2).to(at::kDouble)));
    }
    return absl::OkStatus();
  });
}

TEST(StateTransferTest, ParametersThatNeedGradientsAndPaddedRows) {
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    TransferRequest request;
    at::Tensor parameter = at::full({6, 2}, 9.0f).requires_grad_();
    if (world->rank() == 0) {
      request.gives = {Whole("embedding", Values({4, 2}))};
    } else {
      request.wants = {{.name = "embedding", .data = parameter, .allow_dim0_padding = true}};
    }
    const auto result = TransferState(request, *world);
    if (!result.ok()) return result.status();
    if (world->rank() == 1) {
      EXPECT_TRUE(at::equal(parameter.detach().narrow(0, 0, 4), Values({4, 2})));
      EXPECT_TRUE(at::equal(parameter.detach().narrow(0, 4, 2), at::full({2, 2}, 9.0f)));
    }
    return absl::OkStatus();
  });
}

TEST(StateTransferTest, ErrorsAreTheSameOnEveryMemberAndNothingIsWritten) {
  std::mutex mu;
  std::vector<std::string> messages;
  const auto run = [&](const std::function<void(int rank, TransferRequest&)>& fill) {
    messages.clear();
    RunRanks(3, [&](CommunicatorPtr world) -> absl::Status {
      TransferRequest request;
      at::Tensor w = at::zeros({10});
      request.wants = {Whole("w", w)};
      if (world->rank() == 0)
        request.gives = {Flat("w", Values({4}), {10}, 0), Whole("v", Values({3}))};
      fill(world->rank(), request);
      const auto result = TransferState(request, *world);
      EXPECT_FALSE(result.ok());
      EXPECT_TRUE(at::equal(w, at::zeros({10})));
      const std::lock_guard<std::mutex> lock(mu);
      messages.emplace_back(result.status().ToString());
      return absl::OkStatus();
    });
    EXPECT_EQ(messages[0], messages[1]);
    EXPECT_EQ(messages[0], messages[2]);
    return messages[0];
  };
  EXPECT_THAT(run([](int, TransferRequest&) {}),
              HasSubstr("FAILED_PRECONDITION: tensor \"w\": elements 4 to 10 of the 10 that member "
                        "0 wants are held by no member"));
  const auto whole = [](int rank, TransferRequest& request) {
    if (rank == 2) request.gives = {Whole("w", Values({10}))};
  };
  EXPECT_THAT(run([&](int rank, TransferRequest& request) {
                whole(rank, request);
                if (rank == 1) request.wants_texts = {"rng.pp1"};
              }),
              HasSubstr("text \"rng.pp1\", which member 1 wants, is held by no member"));
  EXPECT_THAT(
      run([&](int rank, TransferRequest& request) {
        whole(rank, request);
        if (rank == 1)
          request.gives.push_back({.name = "bad", .data = Values({3}), .global_shape = {2}});
      }),
      HasSubstr("INVALID_ARGUMENT: rank 1: tensor \"bad\""));
}

TEST(StateTransferTest, NothingToDoIsFine) {
  const CommunicatorPtr self = MakeSelfCommunicator("world", 0);
  const auto result = TransferState({}, *self);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->bytes_moved, 0);
}

// Random cuts of three tensors, held in random places, are put together anywhere.
TEST(StateTransferTest, RandomLayoutsComeOutEqual) {
  for (int round = 0; round < 40; ++round) {
    const int size = 1 + round % 4;
    const std::vector<at::Tensor> whole = {Values({90}, at::kFloat, 1000 * round),
                                           Values({41}, at::kDouble), Values({64}, at::kBFloat16)};
    RunRanks(size, [&](CommunicatorPtr world) -> absl::Status {
      // The same dice on every rank: piece p of tensor t is given by rank owner and wanted by all.
      std::mt19937 dice(round);
      TransferRequest request;
      request.max_bytes_in_flight = 1;  // the least that there is
      std::vector<std::pair<at::Tensor, at::Tensor>> expected;
      for (size_t t = 0; t < whole.size(); ++t) {
        const std::string name = absl::StrCat("t", t);
        const int64_t numel = whole[t].numel();
        for (int64_t at = 0; at < numel;) {
          const int64_t count = std::min<int64_t>(1 + dice() % 30, numel - at);
          for (int copies = 1 + dice() % 2; copies > 0; --copies) {
            if (static_cast<int>(dice() % size) == world->rank())
              request.gives.push_back(
                  Flat(name, whole[t].narrow(0, at, count).clone(), {numel}, at));
          }
          at += count;
        }
        std::mt19937 own(round * 7 + world->rank());
        const int64_t begin = own() % numel, count = own() % (numel - begin) + 1;
        const at::Tensor want = at::zeros({count}, whole[t].scalar_type());
        request.wants.push_back(Flat(name, want, {numel}, begin));
        expected.push_back({want, whole[t].narrow(0, begin, count)});
      }
      const auto result = TransferState(request, *world);
      if (!result.ok()) return result.status();
      for (const auto& [got, right] : expected) EXPECT_TRUE(at::equal(got, right));
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace muster
