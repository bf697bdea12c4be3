// The check over real folders, with the rendezvous as a map of this test.
#include "worker/agent/shared_folder_check.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/runtime/mutex.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Op = StoreRequestMessage::Op;

class SharedFolderCheckTest : public ::testing::Test {
 protected:
  SharedFolderCheckTest() {
    char pattern[] = "/tmp/muster-shared-XXXXXX";
    root_ = mkdtemp(pattern);
  }
  ~SharedFolderCheckTest() override { fs::remove_all(root_); }

  SharedFolderCheck::Options Options(FolderRole role, const std::string& folder) {
    return {.role = role,
            .node = role == FolderRole::kWriter ? "a" : "b",
            .folder = root_ + folder,
            .job_id = "job",
            .epoch = 1,
            .look_limit = absl::Milliseconds(300),
            .ask = [this](const std::string&, const StoreRequestMessage& request,
                          std::function<void(StoreReplyMessage)> reply) {
              MutexLock lock(&mu_);
              ++(request.op == Op::kSet ? sets_ : waits_);
              if (request.op == Op::kSet) value_ = request.value;
              if (request.op == Op::kWaitPrefix) waiting_ = std::move(reply);
              StoreReplyMessage answer{.ok = true};
              if (request.op == Op::kSet) reply(answer);
              if (waiting_ && !value_.empty()) {
                answer.entries = {{kMarkKey, value_}};
                waiting_(answer);
                waiting_ = nullptr;
              }
            }};
  }
  // Starts a check whose result goes to `results_`.
  std::unique_ptr<SharedFolderCheck> Start(FolderRole role, const std::string& folder) {
    return std::make_unique<SharedFolderCheck>(Options(role, folder), [this](absl::Status status) {
      MutexLock lock(&mu_);
      results_.push_back(std::move(status));
      changed_.NotifyAll();
    });
  }
  std::vector<absl::Status> Await(size_t count) {
    const absl::Time until = absl::Now() + absl::Seconds(20);
    MutexLock lock(&mu_);
    while (results_.size() < count && absl::Now() < until) {
      changed_.WaitFor(&mu_, until - absl::Now());
    }
    return results_;
  }

  std::string root_;
  Mutex mu_;
  CondVar changed_;
  int sets_ = 0, waits_ = 0;
  std::string value_;
  std::function<void(StoreReplyMessage)> waiting_;
  std::vector<absl::Status> results_;
};

TEST_F(SharedFolderCheckTest, OneFolderIsFoundToBeOneWithOneMessageANode) {
  const auto reader = Start(FolderRole::kReader, "/save/deep");
  auto writer = Start(FolderRole::kWriter, "/save/deep");
  const auto results = Await(2);
  ASSERT_EQ(results.size(), 2u);
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(sets_, 1);
  EXPECT_EQ(waits_, 1);
  EXPECT_FALSE(fs::is_empty(root_ + "/save/deep"));
  writer.reset();
  EXPECT_TRUE(fs::is_empty(root_ + "/save/deep")) << "the mark is removed afterwards";
}

TEST_F(SharedFolderCheckTest, AnotherFolderIsNamedWithBothNodes) {
  fs::create_directories(root_ + "/b");
  const auto writer = Start(FolderRole::kWriter, "/a");
  ASSERT_EQ(Await(1).size(), 1u);
  const auto reader = Start(FolderRole::kReader, "/b");
  const auto results = Await(2);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_THAT(std::string(results[1].message()),
              HasSubstr(absl::StrCat("checkpoint.save=", root_,
                                     "/b on node b does not hold what rank 0 (node a) wrote: it is "
                                     "not the same folder")));
}

TEST_F(SharedFolderCheckTest, AFolderThatShowsTheMarkLateIsGood) {
  SharedFolderCheck::Options options = Options(FolderRole::kReader, "/late");
  options.look_limit = absl::Seconds(20);
  const auto writer = Start(FolderRole::kWriter, "/a");
  ASSERT_EQ(Await(1).size(), 1u);
  const SharedFolderCheck reader(options, [this](absl::Status status) {
    MutexLock lock(&mu_);
    results_.push_back(std::move(status));
    changed_.NotifyAll();
  });
  fs::create_directory_symlink(root_ + "/a", root_ + "/late");
  const auto results = Await(2);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_TRUE(results[1].ok()) << results[1];
}

TEST_F(SharedFolderCheckTest, AFolderThatCannotBeWrittenIsTheWritersError) {
  std::ofstream(root_ + "/file") << "x";
  const auto writer = Start(FolderRole::kWriter, "/file/save");
  const auto results = Await(1);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("on node a: the folder can't be made"));
  EXPECT_EQ(sets_, 0);
}

TEST_F(SharedFolderCheckTest, ItsEndFreesACheckThatWaits) {
  Start(FolderRole::kReader, "/a").reset();
  EXPECT_EQ(Await(0).size(), 0u) << "and it says nothing then";
  MutexLock lock(&mu_);
  if (waiting_) waiting_({.ok = true});  // late, and harmless
}

}  // namespace
}  // namespace muster
