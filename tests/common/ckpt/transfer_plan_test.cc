#include "common/ckpt/transfer_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using Slices = std::vector<std::vector<TransferSlice>>;

TransferSlice Whole(const std::string& name, std::vector<int64_t> shape) {
  return {.tensor = name,
          .global_shape = shape,
          .box = WholeBox(std::vector<int64_t>(shape.size(), 0), shape)};
}
TransferSlice Flat(const std::string& name, int64_t size, int64_t begin, int64_t end) {
  TransferSlice slice = Whole(name, {size});
  slice.box.flat_begin = begin;
  slice.box.flat_end = end;
  return slice;
}

// Global row-major indices of a slice's elements, in its own order; rows as in `global_shape`.
std::vector<int64_t> ElementsOf(const SliceBox& box, const std::vector<int64_t>& global_shape) {
  std::vector<int64_t> elements;
  for (int64_t flat = box.flat_begin; flat < box.flat_end; ++flat) {
    int64_t rest = flat, stride = 1, index = 0;
    for (size_t d = global_shape.size(); d-- > 0;) {
      index += (box.offset[d] + rest % box.shape[d]) * stride;
      rest /= box.shape[d];
      stride *= global_shape[d];
    }
    elements.push_back(index);
  }
  return elements;
}

struct Random {
  std::mt19937 engine;
  int64_t Below(int64_t limit) { return static_cast<int64_t>(engine() % uint64_t(limit)); }
  TransferSlice Slice(const std::string& name, const std::vector<int64_t>& shape) {
    std::vector<int64_t> offset, extent;
    for (const int64_t whole : shape) {
      offset.push_back(Below(2) == 0 ? 0 : Below(whole));
      extent.push_back(Below(2) == 0 ? whole - offset.back() : 1 + Below(whole - offset.back()));
    }
    TransferSlice slice = {.tensor = name, .global_shape = shape, .box = WholeBox(offset, extent)};
    if (Below(3) == 0) {
      slice.box.flat_begin = Below(slice.box.flat_end + 1);
      slice.box.flat_end =
          slice.box.flat_begin + Below(slice.box.flat_end - slice.box.flat_begin + 1);
    }
    return slice;
  }
};

TEST(TransferPlanTest, RandomLayoutsFillEachWantedElementOnceFromTheSameElement) {
  Random random{std::mt19937(7)};
  int complete = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    SCOPED_TRACE(round);
    const int members = 1 + static_cast<int>(random.Below(5));
    std::vector<std::vector<int64_t>> shapes;
    for (int64_t t = 1 + random.Below(3); t > 0; --t) {
      shapes.emplace_back();
      for (int64_t d = random.Below(4); d > 0; --d) shapes.back().push_back(1 + random.Below(5));
    }
    Slices offers(members), wants(members);
    for (int m = 0; m < members; ++m) {
      for (size_t t = 0; t < shapes.size(); ++t) {
        const std::string name = absl::StrCat("t", t);
        for (int64_t n = random.Below(4); n > 0; --n)
          offers[m].push_back(random.Slice(name, shapes[t]));
        if (random.Below(2) == 0) wants[m].push_back(random.Slice(name, shapes[t]));
      }
    }
    // The dumb version: by element of each tensor, who holds it.
    std::map<std::pair<std::string, int64_t>, std::set<int>> holders;
    for (int m = 0; m < members; ++m) {
      for (const TransferSlice& offer : offers[m]) {
        for (const int64_t e : ElementsOf(offer.box, offer.global_shape))
          holders[{offer.tensor, e}].insert(m);
      }
    }
    bool all_held = true;
    for (const auto& of_member : wants) {
      for (const TransferSlice& want : of_member) {
        for (const int64_t e : ElementsOf(want.box, want.global_shape))
          all_held = all_held && holders.contains({want.tensor, e});
      }
    }
    const auto plan = PlanTransfer(offers, wants);
    ASSERT_EQ(plan.ok(), all_held) << plan.status();
    (all_held ? complete : refused)++;
    if (!plan.ok()) continue;
    std::map<std::pair<int, int>, std::vector<int64_t>> got;  // by (member, want): elements
    for (int m = 0; m < members; ++m) {
      for (size_t w = 0; w < wants[m].size(); ++w) {
        const SliceBox& box = wants[m][w].box;
        got[{m, static_cast<int>(w)}].assign(box.flat_end - box.flat_begin, -1);
      }
    }
    for (const TransferRun& run : *plan) {
      ASSERT_GT(run.count, 0);
      const TransferSlice& offer = offers.at(run.from).at(run.offer);
      const TransferSlice& want = wants.at(run.to).at(run.want);
      ASSERT_EQ(offer.tensor, want.tensor);
      const auto from = ElementsOf(offer.box, offer.global_shape);
      std::vector<int64_t>& into = got.at({run.to, run.want});
      for (int64_t i = 0; i < run.count; ++i) {
        const int64_t element = from.at(run.source + i);
        ASSERT_EQ(into.at(run.target + i), -1) << "filled twice";
        into[run.target + i] = element;
        if (run.from != run.to) {
          ASSERT_FALSE(holders.at({want.tensor, element}).contains(run.to))
              << "taken from another member though it is here";
        }
      }
    }
    for (const auto& [key, elements] : got) {
      const TransferSlice& want = wants[key.first][key.second];
      ASSERT_EQ(elements, ElementsOf(want.box, want.global_shape));
    }
    ASSERT_TRUE(std::is_sorted(plan->begin(), plan->end(), [](const auto& a, const auto& b) {
      return std::tie(a.to, a.want, a.target) < std::tie(b.to, b.want, b.target);
    }));
  }
  EXPECT_GT(complete, 500);
  EXPECT_GT(refused, 500);
}

TEST(TransferPlanTest, EarlierOwnOfferIsPreferred) {
  const auto plan = PlanTransfer({{Flat("w", 10, 0, 6), Whole("w", {10})}}, {{Whole("w", {10})}});
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->size(), 2u);
  EXPECT_EQ((*plan)[0], (TransferRun{.offer = 0, .source = 0, .target = 0, .count = 6}));
  EXPECT_EQ((*plan)[1], (TransferRun{.offer = 1, .source = 6, .target = 6, .count = 4}));
}

TEST(TransferPlanTest, ReplicasShareWhatTheyGive) {
  Slices offers(5), wants(5);
  for (int t = 0; t < 40; ++t) {
    const TransferSlice whole = Whole(absl::StrCat("t", t), {1 + t % 3, 50});
    for (int m = 0; m < 4; ++m) offers[m].push_back(whole);
    wants[4].push_back(whole);
  }
  const auto plan = PlanTransfer(offers, wants);
  ASSERT_TRUE(plan.ok());
  std::map<int, int64_t> given;
  int64_t total = 0;
  for (const TransferRun& run : *plan) {
    given[run.from] += run.count;
    total += run.count;
  }
  ASSERT_EQ(given.size(), 4u);
  for (const auto& [member, count] : given) EXPECT_LE(count, total / 4 + 150) << member;
}

TEST(TransferPlanTest, RefusalsNameTheTensorTheMemberAndTheRange) {
  const Slices want = {{}, {Whole("layer.weight", {10})}};
  auto plan =
      PlanTransfer({{Flat("layer.weight", 10, 0, 3)}, {Flat("layer.weight", 10, 7, 10)}}, want);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(plan.status().message(),
              HasSubstr("tensor \"layer.weight\": elements 3 to 7 of the 10 that member 1 wants"));
  plan = PlanTransfer({{Whole("other", {10})}, {}}, want);
  EXPECT_THAT(plan.status().message(),
              HasSubstr("\"layer.weight\", which member 1 wants, is held by no member"));
  plan = PlanTransfer({{Whole("layer.weight", {11})}, {}}, want);
  EXPECT_THAT(plan.status().message(), HasSubstr("is held as (11), but member 1 wants it as (10)"));
  plan = PlanTransfer({{Whole("layer.weight", {11})}, {Whole("layer.weight", {10})}}, want);
  EXPECT_THAT(plan.status().message(), HasSubstr("is offered as (11) and by member 1 as (10)"));
}

TEST(TransferPlanTest, PaddedRowsAreFilledAsFarAsTheyAreHeld) {
  TransferSlice longer = Whole("vocab", {8, 2}), shorter = Whole("vocab", {4, 2});
  longer.allow_dim0_padding = shorter.allow_dim0_padding = true;
  auto plan = PlanTransfer({{Whole("vocab", {6, 2})}}, {{longer, shorter}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->size(), 2u);
  EXPECT_EQ((*plan)[0].count, 12);
  EXPECT_EQ((*plan)[1].count, 8);
  // A slice of padding alone needs nothing.
  TransferSlice padding = longer;
  padding.box = WholeBox({6, 0}, {2, 2});
  plan = PlanTransfer({{Whole("vocab", {6, 2})}}, {{padding}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->empty());
  // What is below the held rows must be there.
  plan = PlanTransfer({{Flat("vocab", 6, 0, 5)}}, {{Whole("vocab", {6})}});
  EXPECT_FALSE(plan.ok());
}

TEST(TransferPlanTest, ColumnShardsOfAMatrixBecomeRowsOfIt) {
  TransferSlice left = Whole("w", {3, 4}), right = left;
  left.box = WholeBox({0, 0}, {3, 2});
  right.box = WholeBox({0, 2}, {3, 2});
  const auto plan = PlanTransfer({{left}, {right}, {}}, {{}, {}, {Whole("w", {3, 4})}});
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->size(), 6u);
  EXPECT_EQ((*plan)[3], (TransferRun{.from = 1, .to = 2, .source = 2, .target = 6, .count = 2}));
}

// Each of 64 members holds its part of 4,000 tensors; 63 of them go on with larger parts. What is
// quadratic in members or tensors would be seen by the test's limit.
TEST(TransferPlanTest, ShardsOfManyMembersAndTensors) {
  constexpr int kMembers = 64, kTensors = 4000;
  constexpr int64_t kSize = 64 * 63 * 16;
  Slices offers(kMembers), wants(kMembers);
  for (int t = 0; t < kTensors; ++t) {
    const std::string name = absl::StrCat("decoder.layers.", t, ".mlp.linear_fc1.weight");
    for (int64_t m = 0; m < kMembers; ++m)
      offers[m].push_back(Flat(name, kSize, kSize / 64 * m, kSize / 64 * (m + 1)));
    for (int64_t m = 0; m < 63; ++m)
      wants[m].push_back(Flat(name, kSize, kSize / 63 * m, kSize / 63 * (m + 1)));
  }
  const auto plan = PlanTransfer(offers, wants);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->size(), kTensors * (64 + 63 - 1u));
  EXPECT_EQ(PlanTransfer(offers, wants).value(), *plan);
}

// 63 replicas of 4,000 tensors give to one, and each gives its share.
TEST(TransferPlanTest, ManyReplicasGiveToOne) {
  constexpr int kMembers = 64;
  Slices offers(kMembers), wants(kMembers);
  for (int t = 0; t < 4000; ++t) {
    const TransferSlice whole = Whole(absl::StrCat("decoder.layers.", t, ".weight"), {64, 32});
    for (int m = 0; m < kMembers - 1; ++m) offers[m].push_back(whole);
    wants[kMembers - 1].push_back(whole);
  }
  const auto plan = PlanTransfer(offers, wants);
  ASSERT_TRUE(plan.ok());
  std::vector<int> given(kMembers, 0);
  for (const TransferRun& run : *plan) ++given[run.from];
  EXPECT_GE(*std::min_element(given.begin(), given.end() - 1), 4000 / 63);
}

}  // namespace
}  // namespace muster
