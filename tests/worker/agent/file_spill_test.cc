// The spill over real files; a disk that is full is a write function that says so.
#include "worker/agent/file_spill.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "worker/agent/report_codec.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const AssignmentKey kKey = {"w0", "job", 3};

NodeReport Step(int64_t iteration) {
  return {.assignment = kKey, .rank = 1, .report = StepMessage{.epoch = 3, .iteration = iteration}};
}
NodeReport Log(const std::string& line) {
  return {.assignment = kKey, .rank = 1, .report = NodeLogLines{{line}}};
}

std::string Name(const NodeReport& report) {
  if (const auto* log = std::get_if<NodeLogLines>(&report.report)) return log->lines[0];
  return absl::StrCat(std::get<StepMessage>(report.report).iteration);
}
std::vector<std::string> Names(const ReportSpill::Taken& taken) {
  std::vector<std::string> names;
  for (const NodeReport& report : taken.reports) names.push_back(Name(report));
  return names;
}

class FileSpillTest : public ::testing::Test {
 protected:
  FileSpillTest() {
    char pattern[] = "/tmp/muster-spill-XXXXXX";
    root_ = mkdtemp(pattern);
    folder_ = root_ + "/reports";
  }
  ~FileSpillTest() override { fs::remove_all(root_); }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    if (!fs::exists(folder_)) return names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string root_, folder_;
};

TEST_F(FileSpillTest, FirstInFirstOutAndNoFileIsLeft) {
  FileSpill spill({.folder = folder_, .segment_bytes = 1});
  ASSERT_TRUE(spill.Append({Step(1), Log("a"), Step(2)}).ok());
  ASSERT_TRUE(spill.Append({Log("b")}).ok());
  ASSERT_TRUE(spill.Append({Step(3)}).ok());
  EXPECT_EQ(Files().size(), 4u);
  ReportSpill::Taken taken = spill.TakeOldest();
  EXPECT_THAT(Names(taken), ElementsAre("1", "a", "2"));
  EXPECT_EQ(taken.reports[0].assignment, kKey);
  EXPECT_EQ(taken.reports[0].rank, 1);
  EXPECT_THAT(Names(spill.TakeOldest()), ElementsAre("b"));
  EXPECT_FALSE(spill.empty());
  EXPECT_THAT(Names(spill.TakeOldest()), ElementsAre("3"));
  EXPECT_TRUE(spill.empty());
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_EQ(spill.bytes(), 0);
}

TEST_F(FileSpillTest, WhatAFormerProcessLeftIsRemoved) {
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/reports-1") << "old";
  FileSpill spill({.folder = folder_});
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(FileSpillTest, OldestLogLinesGiveWayAndAreCounted) {
  FileSpill spill({.folder = folder_, .max_bytes = 2000, .segment_bytes = 1});
  for (int i = 1; i <= 10; ++i) {
    ASSERT_TRUE(
        spill.Append({Step(i), Log(absl::StrCat("line ", i, " ", std::string(300, '.')))}).ok())
        << i;
  }
  size_t steps = 0, lines = 0, left_out = 0;
  std::string first_line;
  while (!spill.empty()) {
    const ReportSpill::Taken taken = spill.TakeOldest();
    left_out += taken.log_lines_left_out;
    for (const NodeReport& report : taken.reports) {
      const bool log = std::holds_alternative<NodeLogLines>(report.report);
      if (log && lines == 0) first_line = Name(report).substr(0, 7);
      ++(log ? lines : steps);
    }
  }
  EXPECT_EQ(steps, 10u) << "no step is dropped before the bound";
  EXPECT_GT(lines, 0u);
  EXPECT_GT(left_out, 0u);
  EXPECT_EQ(lines + left_out, 10u);
  EXPECT_EQ(first_line, absl::StrCat("line ", left_out + 1, " ")) << "the oldest gave way";
}

TEST_F(FileSpillTest, BoundOfStepsIsAnError) {
  FileSpill spill({.folder = folder_, .max_bytes = 1000});
  absl::Status status;
  int accepted = 0;
  while (status.ok()) {
    status = spill.Append({Step(accepted + 1)});
    accepted += status.ok();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(spill.bytes(), 1000);
  for (int i = 1; i <= accepted; ++i) {
    EXPECT_THAT(Names(spill.TakeOldest()), ElementsAre(absl::StrCat(i)));
  }
  EXPECT_TRUE(spill.empty());
  EXPECT_TRUE(spill.Append({Step(1)}).ok()) << "and there is room again";
}

TEST_F(FileSpillTest, FullDiskLeavesNothingHalfWritten) {
  bool full = false;
  FileSpill spill({.folder = folder_, .write = [&](int fd, const void* bytes, size_t count) {
                     if (!full) return write(fd, bytes, count);
                     if (count > 10) return write(fd, bytes, 10);  // some bytes still go in
                     errno = ENOSPC;
                     return ssize_t(-1);
                   }});
  ASSERT_TRUE(spill.Append({Step(1), Log("a")}).ok());
  full = true;
  EXPECT_EQ(spill.Append({Step(2)}).code(), absl::StatusCode::kResourceExhausted);
  full = false;
  ASSERT_TRUE(spill.Append({Step(3)}).ok());
  std::vector<std::string> all;
  while (!spill.empty()) {
    const ReportSpill::Taken taken = spill.TakeOldest();
    EXPECT_EQ(taken.unreadable, 0u);
    for (const std::string& name : Names(taken)) all.push_back(name);
  }
  EXPECT_THAT(all, ::testing::Contains("1"));
  EXPECT_EQ(all.back(), "3");
}

TEST_F(FileSpillTest, LogLinesAreFreedWhenTheDiskIsFull) {
  int64_t room = 4000;  // a disk that gets back what is deleted
  FileSpill spill({.folder = folder_,
                   .segment_bytes = 1,
                   .write = [&](int fd, const void* bytes, size_t count) {
                     int64_t used = 0;
                     for (const auto& entry : fs::directory_iterator(folder_)) {
                       used += static_cast<int64_t>(entry.file_size());
                     }
                     if (used + static_cast<int64_t>(count) > room) {
                       errno = ENOSPC;
                       return ssize_t(-1);
                     }
                     return write(fd, bytes, count);
                   }});
  ASSERT_TRUE(spill.Append({Log(std::string(3500, 'x'))}).ok());
  ASSERT_TRUE(spill.Append({Step(1), Step(2), Step(3), Step(4), Step(5), Step(6)}).ok());
  for (int i = 7; i < 14; ++i) ASSERT_TRUE(spill.Append({Step(i)}).ok()) << i;
  size_t left_out = 0;
  std::vector<std::string> all;
  while (!spill.empty()) {
    const ReportSpill::Taken taken = spill.TakeOldest();
    left_out += taken.log_lines_left_out;
    for (const std::string& name : Names(taken)) all.push_back(name);
  }
  EXPECT_EQ(all.size(), 13u);
  EXPECT_EQ(left_out, 1u);
}

TEST_F(FileSpillTest, FlippedBitCostsItsRecordOnly) {
  FileSpill spill({.folder = folder_});
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(spill.Append({Step(i)}).ok());
  ASSERT_EQ(Files().size(), 1u);
  const std::string path = folder_ + "/" + Files()[0];
  const int64_t size = fs::file_size(path);
  const int fd = open(path.c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  char byte;
  ASSERT_EQ(pread(fd, &byte, 1, size / 2), 1);
  byte ^= 1;
  ASSERT_EQ(pwrite(fd, &byte, 1, size / 2), 1);
  close(fd);
  EXPECT_THAT(Names(spill.TakeOldest()), ElementsAre("1"));
  const ReportSpill::Taken damaged = spill.TakeOldest();
  EXPECT_THAT(Names(damaged), IsEmpty());
  EXPECT_EQ(damaged.unreadable, 1u);
  EXPECT_EQ(damaged.first, kKey);
  EXPECT_THAT(Names(spill.TakeOldest()), ElementsAre("3"));
}

TEST(ReportCodecTest, EveryKindOfReportComesBack) {
  StepMessage step{.epoch = 3, .iteration = 9, .consumed_samples = 18, .lm_loss = 0.1};
  step.timers_ms = {{"optimizer", 1.5}};
  StepMessage of_experts{.epoch = 3, .iteration = 10};
  double value = 0.1;
  for (const auto& loss : kStepSideLosses) of_experts.*loss.value = ++value;
  const decltype(NodeReport::report) bodies[] = {
      PhaseMessage{3, "forming", "x"},
      PublishUniqueIdMessage{3, "ab"},
      step,
      of_experts,
      EvaluationMessage{3, 9, "valid", 1.5, 4.5, true},
      CheckpointMessage{3, 9, "/c", false, "full", 2.5},
      EventMessage{3, "kind", "text"},
      DoneMessage{3, 16, "why"},
      FailedMessage{3, "why", true},
      TrainerExited{.exit_code = 3, .last_log_lines = {"a", "b"}, .pid = 7},
      TrainerExited{.signal = 9},
      TrainerExited{.launch_error = "no file"},
      NodeLogLines{{"a", "", "b"}}};
  for (const auto& body : bodies) {
    const std::string bytes = EncodeReport({.assignment = kKey, .rank = 2, .report = body});
    const auto decoded = DecodeReport(bytes);
    ASSERT_TRUE(decoded.has_value());
    EXPECT_EQ(decoded->report.index(), body.index());
    EXPECT_EQ(decoded->rank, 2);
    EXPECT_EQ(EncodeReport(*decoded), bytes);
    if (const auto* back = std::get_if<StepMessage>(&decoded->report); back != nullptr) {
      for (const auto& [name, loss] : kStepSideLosses)
        EXPECT_EQ(back->*loss, std::get<StepMessage>(body).*loss) << name;
    }
  }
  EXPECT_FALSE(DecodeReport("").has_value());
  EXPECT_FALSE(DecodeReport("\xff\xff\xff").has_value());
}

}  // namespace
}  // namespace muster
