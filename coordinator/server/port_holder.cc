#include "coordinator/server/port_holder.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr char kListening[] = "0A";  // TCP_LISTEN in /proc/net/tcp

// Inodes of the sockets that listen on `port`.
std::set<std::string> ListeningInodes(int port) {
  std::set<std::string> inodes;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);  // headings
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
          timeout >> inode;
      const size_t colon = local.find(':');
      if (state != kListening || colon == std::string::npos) continue;
      if (std::strtol(local.c_str() + colon + 1, nullptr, 16) == port) inodes.insert(inode);
    }
  }
  return inodes;
}

std::vector<std::string> Entries(const std::string& folder) {
  std::vector<std::string> names;
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) names.emplace_back(entry->d_name);
  closedir(dir);
  return names;
}

bool HoldsOneOf(const std::string& pid, const std::set<std::string>& inodes) {
  const std::string folder = absl::StrCat("/proc/", pid, "/fd/");
  for (const std::string& fd : Entries(folder)) {
    char target[64];
    const ssize_t size = readlink((folder + fd).c_str(), target, sizeof(target));
    if (size <= 0) continue;
    const std::string link(target, size);  // "socket:[12345]"
    if (link.rfind("socket:[", 0) == 0 && inodes.contains(link.substr(8, link.size() - 9))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string DescribePortHolder(int port) {
  const std::set<std::string> inodes = ListeningInodes(port);
  if (inodes.empty()) return "the address cannot be used on this machine";
  for (const std::string& pid : Entries("/proc")) {
    int number = 0;
    if (!absl::SimpleAtoi(pid, &number) || !HoldsOneOf(pid, inodes)) continue;
    std::ifstream in(absl::StrCat("/proc/", pid, "/comm"));
    std::string name;
    std::getline(in, name);
    return absl::StrCat("the port is taken by process ", pid, " (", name, ")");
  }
  return "the port is taken by a process that this user may not see";
}

}  // namespace muster
