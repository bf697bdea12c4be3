#include "tests/integration/network_namespaces.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

std::vector<std::string> Inside(const Process& holder, std::vector<std::string> command) {
  std::vector<std::string> words = {"/usr/bin/nsenter", "-t", absl::StrCat(holder.pid()), "-n",
                                    "--"};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::string NamespaceOf(pid_t pid) {
  char link[64] = {};
  const ssize_t size =
      readlink(absl::StrCat("/proc/", pid, "/ns/net").c_str(), link, sizeof(link) - 1);
  return size > 0 ? std::string(link, size) : "";
}

}  // namespace

NetworkNamespaces::NetworkNamespaces(const std::string& folder, int num_hosts) : folder_(folder) {
  if (geteuid() != 0) {
    error_ = "only root can make network namespaces";
    return;
  }
  const Process& hub = *Hold();
  if (!ok()) return;
  Run(Inside(hub, {"/sbin/ip", "link", "add", "hub", "type", "bridge"}));
  Run(Inside(hub, {"/sbin/ip", "link", "set", "hub", "up"}));
  for (int host = 0; host < num_hosts; ++host) {
    const Process& holder = *Hold();
    if (!ok()) return;
    const std::string port = absl::StrCat("port", host);
    Run(Inside(hub, {"/sbin/ip", "link", "add", port, "type", "veth", "peer", "name", "eth0",
                     "netns", absl::StrCat(holder.pid())}));
    Run(Inside(hub, {"/sbin/ip", "link", "set", port, "master", "hub"}));
    Run(Inside(hub, {"/sbin/ip", "link", "set", port, "up"}));
    Run(Inside(holder, {"/sbin/ip", "addr", "add", address(host) + "/24", "dev", "eth0"}));
    Run(Inside(holder, {"/sbin/ip", "link", "set", "eth0", "up"}));
    Run(Inside(holder, {"/sbin/ip", "link", "set", "lo", "up"}));
  }
}

NetworkNamespaces::~NetworkNamespaces() = default;

std::string NetworkNamespaces::address(int host) const {
  return absl::StrCat("10.77.0.", host + 1);
}

std::vector<std::string> NetworkNamespaces::On(int host, std::vector<std::string> command) const {
  return Inside(*holders_[host + 1], std::move(command));
}

bool NetworkNamespaces::Cut(int host, bool cut) {
  return Run(Inside(*holders_[0],
                    {"/sbin/ip", "link", "set", absl::StrCat("port", host), cut ? "down" : "up"}));
}

// A process in a new namespace, which lives as long as it does.
Process* NetworkNamespaces::Hold() {
  holders_.push_back(std::make_unique<Process>(
      folder_, std::vector<std::string>{"/usr/bin/unshare", "-n", "/bin/sleep", "600"}));
  const std::string ours = NamespaceOf(getpid());
  const pid_t pid = holders_.back()->pid();
  const bool made = Eventually(
      [&] {
        const std::string theirs = NamespaceOf(pid);
        return !theirs.empty() && theirs != ours;
      },
      absl::Seconds(10));
  if (!made && error_.empty()) {
    error_ = absl::StrCat("cannot make a network namespace: ", holders_.back()->Stderr());
  }
  return holders_.back().get();
}

bool NetworkNamespaces::Run(std::vector<std::string> command) {
  const Result result = RunCommand(folder_, command);
  if (result.code == 0) return true;
  if (error_.empty()) error_ = absl::StrCat(command.back(), ": ", result.err);
  return false;
}

}  // namespace muster
