#include "worker/comm/shm_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <thread>

namespace muster {
namespace {

using ::testing::HasSubstr;
using Arenas = std::vector<std::shared_ptr<ShmArena>>;

std::vector<std::unique_ptr<ShmLinks>> OpenAll(int size, std::vector<ShmAddress>* addresses) {
  std::vector<std::unique_ptr<ShmLinks>> links;
  for (int i = 0; i < size; ++i) {
    auto one = ShmLinks::Open();
    EXPECT_TRUE(one.ok()) << one.status();
    const auto text = ShmAddress::Decode((*one)->address().Encode());
    EXPECT_TRUE(text.ok()) << text.status();
    addresses->push_back(*text);
    links.push_back(*std::move(one));
  }
  return links;
}

TEST(ShmLinksTest, AllMeetAndSeeEachOthersMemory) {
  constexpr int kSize = 4;
  std::vector<ShmAddress> addresses;
  const auto links = OpenAll(kSize, &addresses);
  std::atomic<int> wrong{0}, num_gone{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kSize; ++i) {
    threads.emplace_back([&, i] {
      absl::StatusOr<Arenas> arenas = links[i]->Meet(addresses, i, absl::Seconds(20));
      if (!arenas.ok()) {
        ++wrong;
        return;
      }
      if (!(*arenas)[i]->MakeBlock(100 + i, 64).ok()) ++wrong;
      for (int peer = 0; peer < kSize; ++peer) {
        while ((*arenas)[peer]->FindBlock(100 + peer) == nullptr) std::this_thread::yield();
        wrong += (*arenas)[peer]->FindBlock(99) != nullptr;
      }
      // Each leaves when all before it have.
      int seen = 0;
      if (i == 0) links[i]->Close();
      links[i]->Watch([&](int) {
        ++num_gone;
        if (++seen == i) links[i]->Close();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(num_gone, kSize * (kSize - 1) / 2);
}

TEST(ShmLinksTest, AStrangerIsNotLetIn) {
  std::vector<ShmAddress> addresses;
  const auto links = OpenAll(2, &addresses);
  const int stranger = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  addresses[0].socket.copy(to.sun_path + 1, sizeof(to.sun_path) - 1);
  ASSERT_EQ(connect(stranger, reinterpret_cast<sockaddr*>(&to),
                    offsetof(sockaddr_un, sun_path) + 1 + addresses[0].socket.size()),
            0);
  ASSERT_EQ(send(stranger, "let me in", 9, 0), 9);
  absl::Status seen;
  std::thread other([&] { seen = links[1]->Meet(addresses, 1, absl::Seconds(20)).status(); });
  EXPECT_TRUE(links[0]->Meet(addresses, 0, absl::Seconds(20)).ok());
  other.join();
  EXPECT_TRUE(seen.ok()) << seen;
  char byte = 0;
  EXPECT_LE(recv(stranger, &byte, 1, 0), 0) << "it was sent away";
  close(stranger);
}

TEST(ShmLinksTest, WhoDoesNotComeIsNamed) {
  std::vector<ShmAddress> addresses;
  const auto links = OpenAll(3, &addresses);
  const absl::Status status = links[0]->Meet(addresses, 0, absl::Milliseconds(20)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("places 1-2"));
}

TEST(ShmLinksTest, CloseFreesTheMeeting) {
  std::vector<ShmAddress> addresses;
  const auto links = OpenAll(2, &addresses);
  std::thread closer([&] { links[0]->Close(); });
  EXPECT_TRUE(absl::IsAborted(links[0]->Meet(addresses, 0, absl::Seconds(20)).status()));
  closer.join();
}

TEST(ShmLinksTest, ARankThatHasGoneIsAnErrorAtOnce) {
  std::vector<ShmAddress> addresses;
  auto links = OpenAll(2, &addresses);
  links[0].reset();
  const absl::Status status = links[1]->Meet(addresses, 1, absl::Seconds(20)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

}  // namespace
}  // namespace muster
