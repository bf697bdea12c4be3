#include "worker/parallel/bucket_layout.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

// The model of the goldens G6.1 and G6.2, in registration order.
const std::vector<std::string> kNames = {"emb", "w1", "b1", "w2", "b2", "head"};
std::vector<BucketLayoutParam> Params() {
  return {{.numel = 1000}, {.numel = 300}, {.numel = 10},
          {.numel = 200},  {.numel = 7},   {.numel = 1000}};
}

std::string Text(const ElementRange& r) { return absl::StrCat("[", r.begin, ",", r.end, ")"); }

// "head[0,1000) | b2[1000,1007) ... ; buckets [0,1000)=1000 ..." (the number: elements unpadded)
std::string Text(const BucketLayout& layout) {
  std::string params, buckets;
  for (const BucketSpan& bucket : layout.buckets) {
    if (!params.empty()) params += " |";
    for (int p : bucket.params)
      absl::StrAppend(&params, params.empty() ? "" : " ", kNames[p], Text(layout.params[p]));
    absl::StrAppend(&buckets, " ", Text(bucket.range), "=", bucket.numel_unpadded);
  }
  return absl::StrCat(params, " ;", buckets);
}

struct Row {
  std::string name;
  BucketLayoutOptions options;
  bool emb_is_shared = false;
  std::string expected;
};

TEST(BucketLayoutTest, GoldenG6_1) {
  const std::vector<Row> rows = {
      {"plain",
       {.bucket_size = 500},
       false,
       "head[0,1000) | b2[1000,1007) w2[1007,1207) b1[1207,1217) w1[1217,1517) | emb[1517,2517) ; "
       "[0,1000)=1000 [1000,1517)=517 [1517,2517)=1000"},
      {"plain, one bucket",
       {},
       false,
       "head[0,1000) b2[1000,1007) w2[1007,1207) b1[1207,1217) w1[1217,1517) emb[1517,2517) ; "
       "[0,2517)=2517"},
      {"plain ignores shared_embedding",
       {},
       true,
       "head[0,1000) b2[1000,1007) w2[1007,1207) b1[1207,1217) w1[1217,1517) emb[1517,2517) ; "
       "[0,2517)=2517"},
      {"distopt dp4",
       {.bucket_size = 500, .distributed_optimizer = true, .dp_shards = 4},
       false,
       "head[0,1000) | b2[1024,1031) w2[1088,1288) b1[1344,1354) w1[1408,1708) | emb[1792,2792) ; "
       "[0,1024)=1000 [1024,1792)=684 [1792,2816)=1000"},
      {"distopt dp3",
       {.bucket_size = 500, .distributed_optimizer = true, .dp_shards = 3},
       false,
       "head[0,1000) | b2[1152,1159) w2[1216,1416) b1[1472,1482) w1[1536,1836) | emb[1920,2920) ; "
       "[0,1152)=1000 [1152,1920)=684 [1920,3072)=1000"},
      {"distopt dp4, one bucket",
       {.distributed_optimizer = true, .dp_shards = 4},
       false,
       "head[0,1000) b2[1024,1031) w2[1088,1288) b1[1344,1354) w1[1408,1708) emb[1728,2728) ; "
       "[0,2816)=2728"},
      {"distopt dp4, padded for bus bandwidth",
       {.bucket_size = 500,
        .distributed_optimizer = true,
        .dp_shards = 4,
        .pad_for_high_nccl_busbw = true},
       false,
       "head[0,1000) | b2[65536,65543) w2[65600,65800) b1[65856,65866) w1[65920,66220) | "
       "emb[131072,132072) ; [0,65536)=1000 [65536,131072)=684 [131072,196608)=1000"},
      {"distopt dp4, one bucket, shared embedding",
       {.distributed_optimizer = true, .dp_shards = 4},
       true,
       "head[0,1000) b2[1024,1031) w2[1088,1288) b1[1344,1354) w1[1408,1708) | emb[1792,2792) ; "
       "[0,1792)=1728 [1792,2816)=1000"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    std::vector<BucketLayoutParam> params = Params();
    params[0].shared_embedding = row.emb_is_shared;
    EXPECT_EQ(Text(ComputeBucketLayout(params, row.options)), row.expected);
  }
}

TEST(BucketLayoutTest, GoldenG6_2) {
  const BucketLayout layout = ComputeBucketLayout(
      Params(), {.bucket_size = 500, .distributed_optimizer = true, .dp_shards = 4});
  auto text = [&](int bucket, int rank, bool with_shard) {
    std::string out;
    for (const ParamShard& part : ShardOfBucket(layout, bucket, rank, 4)) {
      absl::StrAppend(&out, out.empty() ? "" : " ", kNames[part.param], Text(part.in_param));
      if (with_shard) absl::StrAppend(&out, "@", Text(part.in_shard));
    }
    return out;
  };
  const std::vector<std::string> quarters = {"[0,256)", "[256,512)", "[512,768)", "[768,1000)"};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(text(0, rank, false), "head" + quarters[rank]);
    EXPECT_EQ(text(2, rank, false), "emb" + quarters[rank]);
  }
  EXPECT_EQ(text(1, 0, false), "b2[0,7) w2[0,128)");
  EXPECT_EQ(text(1, 1, true), "w2[128,200)@[0,72) b1[0,10)@[128,138)");
  EXPECT_EQ(text(1, 2, false), "w1[0,192)");
  EXPECT_EQ(text(1, 3, false), "w1[192,300)");
}

TEST(BucketLayoutTest, ShardsCoverEveryElementOnce) {
  const BucketLayout layout = ComputeBucketLayout(
      Params(), {.bucket_size = 300, .distributed_optimizer = true, .dp_shards = 3});
  std::vector<std::vector<int>> hits;
  for (const BucketLayoutParam& p : Params()) hits.emplace_back(p.numel, 0);
  for (int b = 0; b < static_cast<int>(layout.buckets.size()); ++b) {
    for (int rank = 0; rank < 3; ++rank) {
      for (const ParamShard& part : ShardOfBucket(layout, b, rank, 3)) {
        for (int64_t i = part.in_param.begin; i < part.in_param.end; ++i) ++hits[part.param][i];
        EXPECT_EQ(part.in_buffer.begin - layout.buckets[b].range.begin, part.in_bucket.begin);
        EXPECT_EQ(part.in_buffer.begin - layout.params[part.param].begin, part.in_param.begin);
        EXPECT_EQ(part.in_shard.size(), part.in_param.size());
      }
    }
  }
  for (const auto& of_param : hits)
    for (int count : of_param) EXPECT_EQ(count, 1);
}

TEST(BucketLayoutTest, BucketSize) {
  struct Row {
    std::string name;
    BucketSizeRequest request;
    std::optional<int64_t> expected;
  };
  const std::vector<Row> rows = {
      {"no overlap", {.bucket_size = 5}, std::nullopt},
      {"given", {.overlap_grad_reduce = true, .bucket_size = 5}, 5},
      {"default, small group", {.overlap_grad_reduce = true, .dp_cp_size = 8}, 40'000'000},
      {"default, large group", {.overlap_grad_reduce = true, .dp_cp_size = 64}, 64'000'000},
      {"number", {.overlap_grad_reduce = true, .num_buckets = 3, .num_parameters = 100}, 33},
      {"later chunk", {.overlap_grad_reduce = true, .bucket_size = 5, .chunk = 1}, std::nullopt},
      {"later stage", {.overlap_grad_reduce = true, .bucket_size = 5, .pp_rank = 1}, std::nullopt},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(ResolveBucketSize(row.request), row.expected);
  }
  EXPECT_TRUE(BucketingIsDisabled({.chunk = 1}));
  EXPECT_FALSE(BucketingIsDisabled({.pp_rank = 1}));
}

}  // namespace
}  // namespace muster
