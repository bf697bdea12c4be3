// Hosts of a private network on this machine, to cut them off from each other: a network namespace
// each, joined by a bridge in one more. Addresses 10.77.0.1, .2, ... Needs root; all of it goes
// with the object, since a namespace lives as long as the process that holds it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/integration/process.h"

namespace muster {

class NetworkNamespaces {
 public:
  // `error` says why there are none: not root, or a tool is missing.
  NetworkNamespaces(const std::string& folder, int num_hosts);
  ~NetworkNamespaces();
  bool ok() const { return error_.empty(); }
  const std::string& error() const { return error_; }

  std::string address(int host) const;
  // `command` as run inside the host's network.
  std::vector<std::string> On(int host, std::vector<std::string> command) const;
  // Drops all packets to and from the host (its own loopback works on), or lets them pass again.
  bool Cut(int host, bool cut);

 private:
  Process* Hold();
  bool Run(std::vector<std::string> command);

  const std::string folder_;
  std::string error_;
  std::vector<std::unique_ptr<Process>> holders_;  // [0]: the bridge's; then a host each
};

}  // namespace muster
