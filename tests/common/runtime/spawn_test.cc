#include "common/runtime/spawn.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>

#include "common/runtime/fd.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

class SpawnTest : public testing::Test {
 protected:
  // Runs it to its end with a pipe as its inherited descriptor.
  void Run(SpawnOptions options) {
    int pipe[2];
    ASSERT_EQ(pipe2(pipe, O_CLOEXEC), 0);
    Fd read_end(pipe[0]), write_end(pipe[1]);
    options.program = "/bin/sh";
    options.inherited_fd = write_end.get();
    ASSERT_EQ(Spawn(options, &pid_), 0);
    write_end.Reset();
    char buffer[256];
    for (ssize_t count; (count = read(read_end.get(), buffer, sizeof(buffer))) > 0;) {
      inherited_.append(buffer, count);
    }
    ASSERT_EQ(waitpid(pid_, &wait_status_, 0), pid_);
  }
  std::string Output() const {
    std::ifstream in(path_);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const std::string path_ = testing::TempDir() + "/spawn_" + std::to_string(getpid()) + ".log";
  pid_t pid_ = -1;
  int wait_status_ = 0;
  std::string inherited_;
};

TEST_F(SpawnTest, OutputIsAppendedToTheFile) {
  Run({.arguments = {"-c", "echo one; echo two >&2; echo three >&3; exit 7"},
       .output_path = path_});
  EXPECT_EQ(WEXITSTATUS(wait_status_), 7);
  EXPECT_EQ(Output(), "one\ntwo\n");
  EXPECT_EQ(inherited_, "three\n");
  Run({.arguments = {"-c", "echo four"}, .output_path = path_});
  EXPECT_EQ(Output(), "one\ntwo\nfour\n");
  unlink(path_.c_str());
}

TEST_F(SpawnTest, OutputGoesToTheDescriptorAndTheEnvironmentIsTheGivenOne) {
  const Fd file(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.open());
  setenv("SPAWN_TEST_OWN", "own", 1);
  Run({.arguments = {"-c", "echo $SPAWN_TEST_GIVEN $SPAWN_TEST_OWN"},
       .environment = {{"SPAWN_TEST_GIVEN=given"}},
       .output_fd = file.get()});
  EXPECT_THAT(Output(), HasSubstr("given"));
  EXPECT_THAT(Output(), Not(HasSubstr("own")));
  unlink(path_.c_str());
}

TEST_F(SpawnTest, ItHasAGroupOfItsOwnAndNoSignalOfOursIgnored) {
  signal(SIGTERM, SIG_IGN);
  Run({.arguments = {"-c", "kill -TERM -$$"}, .output_path = "/dev/null"});
  signal(SIGTERM, SIG_DFL);
  EXPECT_TRUE(WIFSIGNALED(wait_status_));
  EXPECT_EQ(WTERMSIG(wait_status_), SIGTERM);
}

TEST_F(SpawnTest, AProgramThatIsNotThereIsAnError) {
  const Fd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(
      Spawn({.program = "/no/such/program", .output_path = "/dev/null", .inherited_fd = file.get()},
            &pid_),
      ENOENT);
}

}  // namespace
}  // namespace muster
