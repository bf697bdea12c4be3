#include "worker/snapshot/snapshot_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/snapshot/memory_file.h"
#include "worker/snapshot/snapshot_content.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ContentOf(int64_t iteration, size_t size = 3000) {
  std::mt19937 random(static_cast<uint32_t>(iteration));
  std::string content(size, '\0');
  for (char& c : content) c = static_cast<char>(random());
  return content;
}

absl::Status Write(SnapshotMemory& memory, SnapshotSlot slot, int64_t iteration,
                   const std::string& content) {
  auto writer = memory.Begin(slot, static_cast<int64_t>(content.size()));
  if (!writer.ok()) return writer.status();
  (*writer)->Append(absl::string_view(content).substr(0, 100));
  const uint32_t index_crc = (*writer)->crc();
  (*writer)->Append(absl::string_view(content).substr(100));
  return (*writer)->Finish({.iteration = iteration,
                            .epoch = 2,
                            .index_bytes = 100,
                            .content_bytes = static_cast<int64_t>(content.size()),
                            .index_crc = index_crc,
                            .content_crc = (*writer)->crc()});
}

std::vector<int64_t> Iterations(const SnapshotMemory& memory) {
  std::vector<int64_t> iterations;
  for (const auto& [slot, stamp] : memory.Complete()) iterations.push_back(stamp.iteration);
  return iterations;
}

TEST(SnapshotMemoryTest, SuccessorFindsEachCompleteGeneration) {
  MemoryFile file;
  {
    const auto memory = file.Open();
    EXPECT_THAT(memory->notes(), IsEmpty());
    EXPECT_THAT(Iterations(*memory), IsEmpty());
    ASSERT_TRUE(Write(*memory, {1, 0}, 10, ContentOf(10)).ok());
    ASSERT_TRUE(Write(*memory, {1, 1}, 20, ContentOf(20)).ok());
    ASSERT_TRUE(Write(*memory, {0, 2}, 20, ContentOf(21, 50000)).ok());  // as a buddy
  }
  const auto memory = file.Open();
  EXPECT_THAT(memory->notes(), IsEmpty());
  ASSERT_THAT(Iterations(*memory), ElementsAre(20, 10, 20));
  const auto view = memory->Map({0, 2});
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->bytes(), ContentOf(21, 50000));
  EXPECT_EQ(view->stamp.epoch, 2);
  EXPECT_TRUE(memory->Verify({0, 2}).ok());
  EXPECT_EQ(memory->Map({0, 0}).status().code(), absl::StatusCode::kNotFound);
}

TEST(SnapshotMemoryTest, SlotsAreReusedAndTheirRoomGrowsAndIsGivenBack) {
  MemoryFile file;
  const auto memory = file.Open();
  ASSERT_TRUE(Write(*memory, {0, 0}, 1, ContentOf(1)).ok());
  const int64_t room = memory->bytes();
  for (int64_t i = 2; i < 20; ++i) ASSERT_TRUE(Write(*memory, {0, 0}, i, ContentOf(i)).ok());
  EXPECT_EQ(memory->bytes(), room);
  ASSERT_TRUE(Write(*memory, {0, 0}, 20, ContentOf(20, 1 << 20)).ok());
  EXPECT_GT(memory->bytes(), 1 << 20);
  const int64_t used = file.memory();
  EXPECT_EQ(memory->Map({0, 0})->bytes(), ContentOf(20, 1 << 20));
  memory->Free({0, 0});
  EXPECT_EQ(memory->bytes(), 0);
  EXPECT_LE(file.memory(), used - (1 << 20));
  EXPECT_THAT(Iterations(*memory), IsEmpty());
  EXPECT_THAT(Iterations(*file.Open()), IsEmpty());
}

TEST(SnapshotMemoryTest, WriterThatStopsAnywhereLeavesNothingOfItsSlotAndAllOfTheOthers) {
  const std::string content = ContentOf(3);
  for (size_t stop = 0; stop <= content.size(); stop += 250) {
    SCOPED_TRACE(stop);
    MemoryFile file;
    {
      const auto memory = file.Open();
      ASSERT_TRUE(Write(*memory, {0, 0}, 1, ContentOf(1)).ok());
      ASSERT_TRUE(Write(*memory, {0, 1}, 2, ContentOf(2)).ok());
      auto writer = memory->Begin({0, stop % 500 == 0 ? 0 : 2}, 3000);
      ASSERT_TRUE(writer.ok());
      (*writer)->Append(absl::string_view(content).substr(0, stop));
    }
    const auto memory = file.Open();
    if (stop % 500 == 0) {
      EXPECT_THAT(Iterations(*memory), ElementsAre(2));
    } else {
      EXPECT_THAT(Iterations(*memory), ElementsAre(1, 2));
      EXPECT_EQ(memory->Map({0, 0})->bytes(), ContentOf(1));
    }
    EXPECT_TRUE(memory->Verify({0, 1}).ok());
  }
}

// A process writes generation after generation, of varying size, and is killed in the middle of
// something.
TEST(SnapshotMemoryTest, KilledWriterLeavesWholeGenerationsOnly) {
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    MemoryFile file;
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const auto size_of = [](int64_t iteration) {
      return static_cast<size_t>(200 + iteration * 7919 % 200000);
    };
    const pid_t child = fork();
    if (child == 0) {
      auto memory = SnapshotMemory::Open(file.path(), "job-1");
      for (int64_t i = 1;
           memory.ok() && Write(**memory, {0, i % 3}, i, ContentOf(i, size_of(i))).ok(); ++i) {
        (void)!write(ends[1], "x", 1);
      }
      _exit(1);
    }
    close(ends[1]);
    const uint32_t wanted = 1 + random() % 12;
    for (uint32_t seen = 0; seen < wanted; ++seen) {
      char byte;
      ASSERT_EQ(read(ends[0], &byte, 1), 1);
    }
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    close(ends[0]);
    const auto memory = file.Open();
    int64_t newest = 0;
    for (const auto& [slot, stamp] : memory->Complete()) {
      EXPECT_TRUE(memory->Verify(slot).ok());
      EXPECT_EQ(memory->Map(slot)->bytes(), ContentOf(stamp.iteration, size_of(stamp.iteration)));
      EXPECT_EQ(stamp.iteration % 3, slot.slot);
      newest = std::max(newest, stamp.iteration);
    }
    EXPECT_GE(newest, wanted) << "what was complete is there";
    // It goes on, and what the dead one had taken is not lost.
    ASSERT_TRUE(Write(*memory, {0, 1}, 1000, ContentOf(1000)).ok());
    for (int64_t slot = 0; slot < 3; ++slot) memory->Free({0, slot});
    EXPECT_LT(file.memory(), 64 << 10);
  }
}

TEST(SnapshotMemoryTest, EveryFlippedByteIsFoundOrHarmless) {
  MemoryFile file;
  const std::string content = ContentOf(7);
  ASSERT_TRUE(Write(*file.Open(), {3, 1}, 7, content).ok());
  struct stat status = {};
  ASSERT_EQ(fstat(file.fd(), &status), 0);
  const int64_t end = std::min<int64_t>(status.st_size, 21000 + 4096 + 3500);
  int found = 0, harmless = 0;
  // Every byte of the structures, and some of what has no structure.
  const auto step = [](int64_t at) {
    const auto within = [at](int64_t begin, int64_t bytes) {
      return at >= begin - 97 && at < begin + bytes;
    };
    if (within(0, 1056) || within(4096, 64) || within(20480, 88)) return 1;
    return at >= 24576 ? 11 : 97;
  };
  for (int64_t at = 0; at < end; at += step(at)) {
    SCOPED_TRACE(at);
    const char old = file.ByteAt(at);
    std::string before(static_cast<size_t>(status.st_size), '\0');
    file.SetByte(at, static_cast<char>(old ^ 0x10));
    {
      // As a view of a copy: opening may repair, and so change, the file.
      MemoryFile copy;
      ASSERT_EQ(pread(file.fd(), before.data(), before.size(), 0), status.st_size);
      ASSERT_EQ(pwrite(copy.fd(), before.data(), before.size(), 0), status.st_size);
      const auto memory = copy.Open();
      const auto complete = memory->Complete();
      if (complete.contains({3, 1}) && memory->Verify({3, 1}).ok()) {
        ++harmless;
        EXPECT_EQ(memory->Map({3, 1})->bytes(), content);
        EXPECT_EQ(complete.at({3, 1}).iteration, 7);
        EXPECT_EQ(complete.at({3, 1}).epoch, 2);
      } else {
        ++found;
      }
      EXPECT_LE(complete.size(), 1u);
    }
    file.SetByte(at, old);
  }
  EXPECT_GT(found, 1056 + 60 + 80 + 3000 / 11 - 10);
  EXPECT_GT(harmless, 0);
}

TEST(SnapshotMemoryTest, DamageIsNamed) {
  MemoryFile file;
  const auto memory = file.Open();
  ASSERT_TRUE(Write(*memory, {3, 1}, 7, ContentOf(7)).ok());
  memory->Map({3, 1})->content[2000] ^= 1;
  const absl::Status status = memory->Verify({3, 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("the snapshot of rank 3 of iteration 7 is damaged"));
}

TEST(SnapshotMemoryTest, MemoryOfAnotherJobIsBegunAnew) {
  MemoryFile file;
  ASSERT_TRUE(Write(*file.Open("job-1"), {0, 0}, 7, ContentOf(7, 1 << 20)).ok());
  const auto memory = file.Open("job-2");
  EXPECT_THAT(memory->notes(),
              ElementsAre("the snapshot memory is of another job: it is begun anew"));
  EXPECT_THAT(Iterations(*memory), IsEmpty());
  EXPECT_LT(file.memory(), 64 << 10);
  ASSERT_TRUE(Write(*memory, {0, 0}, 8, ContentOf(8)).ok());
  EXPECT_THAT(Iterations(*file.Open("job-2")), ElementsAre(8));
}

TEST(SnapshotMemoryTest, NoRoomIsAnErrorOfThatSlotAlone) {
  MemoryFile file(MFD_ALLOW_SEALING);
  const auto memory = file.Open();
  ASSERT_TRUE(Write(*memory, {0, 0}, 1, ContentOf(1)).ok());
  ASSERT_EQ(fcntl(file.fd(), F_ADD_SEALS, F_SEAL_GROW), 0);
  const absl::Status status = Write(*memory, {0, 1}, 2, ContentOf(2));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(Iterations(*memory), ElementsAre(1));
  ASSERT_TRUE(Write(*memory, {0, 0}, 3, ContentOf(3)).ok());
  EXPECT_THAT(Iterations(*file.Open()), ElementsAre(3));
}

TEST(SnapshotMemoryTest, CopyForABuddyIsCheckedOnItsWay) {
  MemoryFile mine, buddys;
  const auto from = mine.Open(), to = buddys.Open();
  ASSERT_TRUE(Write(*from, {2, 0}, 9, ContentOf(9)).ok());
  const auto view = from->Map({2, 0});
  ASSERT_TRUE(view.ok());
  std::string damaged(view->bytes());
  damaged[1234] ^= 4;
  for (const bool good : {false, true}) {
    auto writer = to->Begin({2, 0}, view->stamp.content_bytes);
    ASSERT_TRUE(writer.ok());
    (*writer)->Append(good ? view->bytes() : damaged);
    const absl::Status status = (*writer)->Finish(view->stamp);
    EXPECT_EQ(status.ok(), good) << status;
    EXPECT_EQ(to->Complete().size(), good ? 1u : 0u);
  }
  EXPECT_EQ(to->Map({2, 0})->stamp, view->stamp);
}

TEST(SnapshotMemoryTest, MissingFileAndDroppedSlot) {
  EXPECT_EQ(SnapshotMemory::Open("/proc/self/fd/9999", "j").status().code(),
            absl::StatusCode::kNotFound);
  MemoryFile file;
  const auto memory = file.Open();
  ASSERT_TRUE(Write(*memory, {0, 0}, 1, ContentOf(1)).ok());
  memory->Drop({0, 0});
  EXPECT_THAT(Iterations(*memory), IsEmpty());
}

SnapshotContent SampleContent() {
  TransferSlice part{.tensor = "optimizer.exp_avg.w",
                     .dtype = DType::kBF16,
                     .global_shape = {8, 6},
                     .box = WholeBox({4, 0}, {4, 6})};
  part.box.flat_begin = 3;
  part.box.flat_end = 14;
  return {.layout = "tp1-dp2",
          .pieces = {1, 5},
          .num_pieces = 6,
          .tensors = {part, {.tensor = "w", .global_shape = {3}, .box = WholeBox({0}, {3})}},
          .texts = {{"common", "{}"}, {"rng.pp0.tp0", std::string("\0x", 2)}}};
}

TEST(SnapshotContentTest, IndexIsReadBack) {
  const SnapshotContent content = SampleContent();
  const PlacedContent placed = Place(content);
  const auto read = ReadIndex(placed.index, placed.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->begins, placed.begins);
  EXPECT_EQ(read->content.layout, content.layout);
  EXPECT_EQ(read->content.pieces, content.pieces);
  EXPECT_EQ(read->content.num_pieces, 6);
  EXPECT_EQ(read->content.texts, content.texts);
  ASSERT_EQ(read->content.tensors.size(), 2u);
  const TransferSlice& part = read->content.tensors[0];
  EXPECT_EQ(part.tensor, "optimizer.exp_avg.w");
  EXPECT_EQ(part.dtype, DType::kBF16);
  EXPECT_THAT(part.global_shape, ElementsAre(8, 6));
  EXPECT_THAT(part.box.offset, ElementsAre(4, 0));
  EXPECT_THAT(part.box.shape, ElementsAre(4, 6));
  EXPECT_EQ(part.box.flat_begin, 3);
  EXPECT_EQ(part.box.flat_end, 14);
  EXPECT_EQ(placed.begins[0] % kTensorAlignment, 0);
  EXPECT_EQ(placed.begins[1] - placed.begins[0], 64);
  EXPECT_EQ(placed.bytes - placed.begins[1], 64);
}

// A damaged index is an error or another index; never a crash, nor a place outside of the content.
TEST(SnapshotContentTest, DamagedIndexIsSafe) {
  const PlacedContent placed = Place(SampleContent());
  for (size_t at = 0; at < placed.index.size(); ++at) {
    EXPECT_FALSE(ReadIndex(placed.index.substr(0, at), placed.bytes).ok()) << at;
    for (const int bit : {0, 6, 7}) {
      std::string damaged = placed.index;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const auto read = ReadIndex(damaged, placed.bytes);
      if (!read.ok()) continue;
      for (size_t i = 0; i < read->begins.size(); ++i) {
        EXPECT_GE(read->begins[i], 0);
        EXPECT_LE(read->begins[i] + NumBytes(read->content.tensors[i]), placed.bytes);
      }
    }
  }
}

}  // namespace
}  // namespace muster
