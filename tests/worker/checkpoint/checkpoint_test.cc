#include "worker/checkpoint/checkpoint.h"

#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "common/ckpt/layout.h"
#include "common/ckpt/verify.h"
#include "tests/worker/checkpoint/checkpoint_test_util.h"
#include "tests/worker/checkpoint/crashing_file_ops.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Status SaveAlone(const std::string& root, const CheckpointState& state,
                       SaveOptions options = {}) {
  options.root = root;
  return SaveCheckpoint(options, state, *MakeSelfCommunicator("world", 0)).status();
}

absl::StatusOr<LoadedCheckpoint> LoadAlone(const std::string& root, std::vector<NamedTensor> into,
                                           std::optional<int64_t> step = std::nullopt) {
  return LoadCheckpoint({.root = root, .ckpt_step = step}, into, *MakeSelfCommunicator("world", 0));
}

at::Tensor Range(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).view(shape);
}

TEST(CheckpointTest, RoundTripsEveryDtypeAndTheState) {
  TestRoot root;
  CheckpointState state{.iteration = 12, .common_json = "{\"a\": 1}", .rank_json = "{\"r\": 2}"};
  std::vector<NamedTensor> into;
  for (const at::ScalarType type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kHalf,
                                    at::kBFloat16, at::kInt, at::kFloat, at::kLong, at::kDouble}) {
    const at::Tensor data = at::arange(6, at::kFloat).view({2, 3}).to(type);
    state.tensors.push_back({.name = c10::toString(type), .data = data});
    into.push_back({.name = c10::toString(type), .data = at::zeros_like(data)});
  }
  state.tensors.push_back({.name = "scalar", .data = at::scalar_tensor(5)});
  state.tensors.push_back({.name = "transposed", .data = Range({2, 3}).t()});
  state.tensors.push_back({.name = "empty", .data = at::empty({0, 4})});
  into.push_back({.name = "scalar", .data = at::scalar_tensor(0)});
  into.push_back({.name = "transposed", .data = at::zeros({3, 2})});
  into.push_back({.name = "empty", .data = at::empty({0, 4})});
  ASSERT_TRUE(SaveAlone(root.path(), state, {.epoch = 4}).ok());
  auto loaded = LoadAlone(root.path(), into);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  for (size_t i = 0; i < into.size(); ++i) {
    EXPECT_TRUE(at::equal(into[i].data, state.tensors[i].data)) << into[i].name;
  }
  EXPECT_EQ(loaded->iteration, 12);
  EXPECT_EQ(loaded->epoch, 4);
  EXPECT_EQ(loaded->world_size, 1);
  EXPECT_EQ(loaded->common_json, "{\"a\": 1}");
  EXPECT_EQ(*loaded->RankJson(0), "{\"r\": 2}");
  EXPECT_EQ(loaded->RankJson(1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(loaded->notes, IsEmpty());
  EXPECT_EQ(*ReadWholeFile(root / "latest_checkpointed_iteration.txt"), "12");
}

TEST(CheckpointTest, ParametersThatNeedGradientsLoad) {
  TestRoot root;
  ASSERT_TRUE(SaveAlone(root.path(), StateOf(1, Range({3}).requires_grad_())).ok());
  at::Tensor parameter = at::zeros({3}).requires_grad_();
  ASSERT_TRUE(LoadAlone(root.path(), {{.name = "w", .data = parameter}}).ok());
  EXPECT_TRUE(at::equal(parameter.detach(), Range({3})));
}

TEST(CheckpointTest, DtypesAndStridesConvert) {
  TestRoot root;
  ASSERT_TRUE(SaveAlone(root.path(), StateOf(1, Range({2, 3}))).ok());
  at::Tensor half = at::zeros({2, 3}, at::kBFloat16);
  at::Tensor strided = at::zeros({3, 2}).t();
  ASSERT_TRUE(LoadAlone(root.path(), {{.name = "w", .data = half}}).ok());
  ASSERT_TRUE(LoadAlone(root.path(), {{.name = "w", .data = strided}}).ok());
  EXPECT_TRUE(at::equal(half.to(at::kFloat), Range({2, 3})));
  EXPECT_TRUE(at::equal(strided, Range({2, 3})));
}

// The slice of rank r of n along `dim`.
NamedTensor Shard(const std::string& name, const at::Tensor& whole, int64_t dim, int64_t r,
                  int64_t n) {
  const int64_t extent = whole.size(dim) / n;
  std::vector<int64_t> offset(static_cast<size_t>(whole.dim()), 0);
  offset[static_cast<size_t>(dim)] = r * extent;
  return {.name = name,
          .data = whole.narrow(dim, r * extent, extent).contiguous(),
          .global_shape = whole.sizes().vec(),
          .global_offset = offset};
}

// Range r of n of the flattened tensor, as a distributed optimizer holds it.
NamedTensor FlatRange(const std::string& name, const at::Tensor& whole, int64_t r, int64_t n) {
  const int64_t begin = whole.numel() * r / n;
  const int64_t end = whole.numel() * (r + 1) / n;
  return {.name = name,
          .data = whole.flatten().slice(0, begin, end).contiguous(),
          .global_shape = whole.sizes().vec(),
          .local_shape = whole.sizes().vec(),
          .flat_begin = begin};
}

// What rank r of n holds: rows, columns, a replica that rank 0 writes, an uneven range.
std::vector<NamedTensor> Layout(int64_t r, int64_t n) {
  NamedTensor replica{.name = "norm", .data = Range({5}) + 300, .write = r == 0};
  return {Shard("rows", Range({8, 3}), 0, r, n), Shard("columns", Range({3, 8}) + 100, 1, r, n),
          replica, FlatRange("moment", Range({3, 7}) + 200, r, n)};
}

TEST(CheckpointTest, AnyLayoutLoadsIntoAnyOther) {
  for (const int saved : {1, 2, 4}) {
    TestRoot root;
    RunRanks(saved, [&](Communicator& world) {
      CheckpointState state{.iteration = 3, .tensors = Layout(world.rank(), saved)};
      state.rank_json = std::to_string(world.rank());
      auto result = SaveCheckpoint({.root = root.path()}, state, world);
      EXPECT_TRUE(result.ok()) << result.status();
    });
    for (const int loading : {1, 2, 4, 8}) {
      RunRanks(loading, [&](Communicator& world) {
        const std::vector<NamedTensor> expected = Layout(world.rank(), loading);
        std::vector<NamedTensor> into = expected;
        for (NamedTensor& tensor : into) tensor.data = at::full_like(tensor.data, -1);
        auto loaded = LoadCheckpoint({.root = root.path()}, into, world);
        ASSERT_TRUE(loaded.ok()) << loaded.status();
        for (size_t i = 0; i < into.size(); ++i) {
          EXPECT_TRUE(at::equal(into[i].data, expected[i].data))
              << into[i].name << " " << saved << " to " << loading;
        }
        EXPECT_EQ(loaded->world_size, saved);
        EXPECT_EQ(*loaded->RankJson(saved - 1), std::to_string(saved - 1));
      });
    }
    auto verified = VerifyCheckpoint(root / "iter_0000003");
    ASSERT_TRUE(verified.ok());
    EXPECT_THAT(verified->problems, IsEmpty());
  }
}

TEST(CheckpointTest, PaddedVocabularyMayDiffer) {
  TestRoot root;
  ASSERT_TRUE(SaveAlone(root.path(), StateOf(1, Range({4, 2}))).ok());
  at::Tensor longer = at::full({6, 2}, -1.0f);
  at::Tensor shorter = at::zeros({3, 2});
  EXPECT_THAT(LoadAlone(root.path(), {{.name = "w", .data = longer}}).status().ToString(),
              HasSubstr("\"w\" is (4, 2) in the checkpoint"));
  for (at::Tensor& tensor : std::vector<at::Tensor>{longer, shorter}) {
    ASSERT_TRUE(
        LoadAlone(root.path(), {{.name = "w", .data = tensor, .allow_dim0_padding = true}}).ok());
  }
  EXPECT_TRUE(at::equal(longer.slice(0, 0, 4), Range({4, 2})));
  EXPECT_TRUE(at::equal(longer.slice(0, 4), at::full({2, 2}, -1.0f)));
  EXPECT_TRUE(at::equal(shorter, Range({4, 2}).slice(0, 0, 3)));
}

TEST(CheckpointTest, BadLoadsAreNamed) {
  TestRoot root;
  EXPECT_EQ(LoadAlone(root.path(), {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadAlone(root / "no", {}).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(SaveAlone(root.path(), StateOf(1, Range({4}))).ok());
  auto missing = LoadAlone(root.path(), {{.name = "v", .data = at::zeros({4})}});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.status().ToString(), HasSubstr("tensor \"v\" is not in the checkpoint"));
  auto shape = LoadAlone(root.path(), {{.name = "w", .data = at::zeros({5})}});
  EXPECT_EQ(shape.status().code(), absl::StatusCode::kFailedPrecondition);
  auto step = LoadAlone(root.path(), {}, 7);
  EXPECT_EQ(step.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(step.status().ToString(), HasSubstr("ckpt_step=7"));
}

TEST(CheckpointTest, BadSavesAreNamed) {
  TestRoot root;
  CheckpointState state = StateOf(1, Range({4}));
  state.tensors[0].global_shape = {8};
  EXPECT_THAT(SaveAlone(root.path(), state).ToString(),
              HasSubstr("\"w\" (8) has 8 elements, but its slices hold 4"));
  state.tensors[0].global_offset = {6};
  EXPECT_THAT(SaveAlone(root.path(), state).ToString(), HasSubstr("lies outside"));
  state.tensors[0].global_offset = {0, 0};
  EXPECT_THAT(SaveAlone(root.path(), state).ToString(), HasSubstr("same number of dims"));
  state.tensors[0] = {.name = "c", .data = at::zeros({2}, at::kComplexFloat)};
  EXPECT_THAT(SaveAlone(root.path(), state).ToString(), HasSubstr("cannot be saved"));
  EXPECT_EQ(LoadAlone(root.path(), {}).status().code(), absl::StatusCode::kNotFound);
}

void FlipByte(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 0x10));
}

TEST(CheckpointTest, EveryFlippedByteIsFound) {
  TestRoot root;
  ASSERT_TRUE(SaveAlone(root.path(), StateOf(1, Range({4}))).ok());
  const std::string folder = root / "iter_0000001";
  for (const char* name : {"shard_00000.safetensors", "rank_00000.json", "common.json"}) {
    const std::string path = folder + "/" + name;
    const int64_t size = static_cast<int64_t>(std::filesystem::file_size(path));
    for (int64_t at = 0; at < size; ++at) {
      FlipByte(path, at);
      auto verified = VerifyCheckpoint(folder);
      ASSERT_TRUE(verified.ok());
      EXPECT_THAT(verified->problems, SizeIs(1)) << name << " byte " << at;
      EXPECT_THAT(verified->problems[0], HasSubstr(name));
      FlipByte(path, at);
    }
  }
  EXPECT_THAT(VerifyCheckpoint(folder)->problems, IsEmpty());
  std::ofstream(folder + "/stray") << "x";
  EXPECT_THAT(VerifyCheckpoint(folder)->problems,
              ElementsAre(HasSubstr("stray: is not part of the checkpoint")));
}

TEST(CheckpointTest, DamageFailsTheLoadOnEveryRankAndIsNamed) {
  TestRoot root;
  RunRanks(2, [&](Communicator& world) {
    CheckpointState state{.iteration = 1, .tensors = {Shard("w", Range({8}), 0, world.rank(), 2)}};
    EXPECT_TRUE(SaveCheckpoint({.root = root.path()}, state, world).ok());
  });
  const std::string shard = root / "iter_0000001/shard_00001.safetensors";
  FlipByte(shard, static_cast<int64_t>(std::filesystem::file_size(shard)) - 1);
  RunRanks(2, [&](Communicator& world) {
    // Only rank 1 needs the damaged half.
    std::vector<NamedTensor> into = {Shard("w", Range({8}), 0, world.rank(), 2)};
    auto loaded = LoadCheckpoint({.root = root.path()}, into, world);
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(loaded.status().ToString(), HasSubstr("rank 1: "));
    EXPECT_THAT(loaded.status().ToString(), HasSubstr("shard_00001.safetensors: bytes"));
    EXPECT_THAT(loaded.status().ToString(), HasSubstr("tensor w"));
  });
}

TEST(CheckpointTest, IncompleteNewestFallsBackWithANote) {
  TestRoot root;
  for (const int64_t iteration : {1, 2, 3}) {
    ASSERT_TRUE(SaveAlone(root.path(), StateOf(iteration, Range({4}))).ok());
  }
  const std::string shard = root / "iter_0000003/shard_00000.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  auto loaded = LoadAlone(root.path(), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->iteration, 2);
  EXPECT_THAT(loaded->notes, ElementsAre(HasSubstr("iter_0000003/shard_00000.safetensors")));
  // The tracker decides where it can.
  std::ofstream(root / "latest_checkpointed_iteration.txt") << "1\n";
  EXPECT_EQ(LoadAlone(root.path(), {})->iteration, 1);
  std::ofstream(root / "latest_checkpointed_iteration.txt") << "garbage";
  EXPECT_EQ(LoadAlone(root.path(), {})->iteration, 2);
  // Something was saved and nothing is whole: not "start from scratch".
  for (const char* name : {"iter_0000001", "iter_0000002"}) {
    std::filesystem::remove(root / name + "/manifest.json");
  }
  EXPECT_EQ(LoadAlone(root.path(), {}).status().code(), absl::StatusCode::kDataLoss);
}

TEST(CheckpointTest, AFailureOfAnyRankIsEveryRanksAndKeepsTheOldOne) {
  TestRoot root;
  for (int failing = 0; failing < 3; ++failing) {
    RunRanks(3, [&](Communicator& world) {
      const auto save = [&](int64_t iteration, FileOps* files) {
        CheckpointState state{.iteration = iteration,
                              .tensors = {Shard("w", Range({9}), 0, world.rank(), 3)}};
        return SaveCheckpoint({.root = root.path(), .files = files}, state, world);
      };
      ASSERT_TRUE(save(1, nullptr).ok());
      CrashingFileOps broken(CrashingFileOps::Mode::kFailOnce, 3);
      const auto failed = save(2, world.rank() == failing ? &broken : nullptr);
      EXPECT_EQ(failed.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(failed.status().ToString(),
                  HasSubstr("rank " + std::to_string(failing) + ": injected"));
      std::vector<NamedTensor> none;
      EXPECT_EQ(LoadCheckpoint({.root = root.path()}, none, world)->iteration, 1);
      // Calling again is the retry.
      EXPECT_TRUE(save(2, nullptr).ok());
      EXPECT_EQ(LoadCheckpoint({.root = root.path()}, none, world)->iteration, 2);
    });
  }
}

// Two attempts at one iteration: the first died when its shards lay aside, manifest and all.
TEST(CheckpointTest, ShardsOfAnotherAttemptAreNeverMixedIn) {
  TestRoot root, elsewhere;
  const auto save = [](const std::string& folder, int64_t epoch, int64_t iteration, float value) {
    RunRanks(2, [&](Communicator& world) {
      const CheckpointState state{
          .iteration = iteration,
          .tensors = {Shard("w", at::full({8}, value), 0, world.rank(), 2)}};
      ASSERT_TRUE(SaveCheckpoint({.root = folder, .epoch = epoch}, state, world).ok());
    });
  };
  const auto load = [&](int64_t iteration, float value) {
    at::Tensor weight = at::zeros({8});
    const auto loaded = LoadAlone(root.path(), {{.name = "w", .data = weight}});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->iteration, iteration);
    EXPECT_TRUE(at::equal(weight, at::full({8}, value))) << weight;
  };
  save(root.path(), 1, 100, 1);
  save(elsewhere.path(), 1, 200, 2);
  const std::string aside = root / AsideFolderName(200, 1);
  for (const bool with_manifest : {true, false}) {
    SCOPED_TRACE(with_manifest);
    std::filesystem::copy(elsewhere / "iter_0000200", aside);
    if (!with_manifest) {
      std::filesystem::remove(aside + "/manifest.json");
      std::filesystem::remove(aside + "/shard_00000.safetensors");
    }
    load(100, 1);
    save(root.path(), 2, 200, 3);
    load(200, 3);
    EXPECT_FALSE(std::filesystem::exists(aside));
    std::filesystem::remove_all(root / "iter_0000200");
    std::ofstream(root / "latest_checkpointed_iteration.txt") << "100\n";
  }
}

// Its disk is slow: it comes to the exchange when the others have waited for longer than anything
// else may take.
class SlowFileOps final : public FileOps {
 public:
  explicit SlowFileOps(absl::Duration wait) : wait_(wait) {}
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    absl::SleepFor(wait_);  // the length of it is what is tested
    return Real().Create(path);
  }
  absl::Status CreateDirectories(const std::string& path) override {
    return Real().CreateDirectories(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Real().Rename(from, to);
  }
  absl::Status RemoveAll(const std::string& path) override { return Real().RemoveAll(path); }
  absl::Status SyncDirectory(const std::string& path) override {
    return Real().SyncDirectory(path);
  }

 private:
  const absl::Duration wait_;
};

TEST(CheckpointTest, ASlowShardDoesNotEndTheGroup) {
  constexpr absl::Duration kLimit = absl::Milliseconds(100);
  for (const int slow : {0, 1}) {  // rank 0 also writes the manifest
    TestRoot root;
    RunRanks(2,
             [&](Communicator& world) {
               SlowFileOps disk(2 * kLimit);
               CheckpointState state{.iteration = 1,
                                     .tensors = {Shard("w", Range({4}), 0, world.rank(), 2)}};
               const auto saved = SaveCheckpoint(
                   {.root = root.path(), .files = world.rank() == slow ? &disk : nullptr}, state,
                   world);
               EXPECT_TRUE(saved.ok()) << saved.status();
               // What is no file's fault has its limit as before.
               if (world.rank() == 0) {
                 const absl::Status alone = world.Barrier()->Wait();
                 EXPECT_TRUE(absl::IsDeadlineExceeded(alone)) << alone;
                 EXPECT_THAT(alone.ToString(), HasSubstr("not done after 100ms"));
               }
             },
             {.operation_limit = kLimit});
  }
}

TEST(CheckpointTest, RetentionDeletesWhatIsNotKept) {
  TestRoot retained, last;
  for (int64_t iteration = 100; iteration <= 600; iteration += 100) {
    const CheckpointState state = StateOf(iteration, Range({2}));
    ASSERT_TRUE(SaveAlone(retained.path(), state, {.save_retain_interval = 300}).ok());
    ASSERT_TRUE(SaveAlone(last.path(), state, {.keep_last = 2}).ok());
  }
  EXPECT_THAT(ListCheckpoints(retained.path()), ElementsAre(300, 600));
  EXPECT_THAT(ListCheckpoints(last.path()), ElementsAre(500, 600));
}

}  // namespace
}  // namespace muster
