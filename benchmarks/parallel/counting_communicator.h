// A communicator that counts what passes through it, for one rank: operations and bytes by group
// and kind, and the time that the rank spends waiting. Bytes are those that a rank must send at
// least: 2 (n - 1) / n of the tensor for an all-reduce, (n - 1) / n of the whole for a
// reduce-scatter or an all-gather, every byte of a send.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "worker/comm/communicator.h"

namespace muster {

// Thread-safe.
class TrafficCounter {
 public:
  struct Operations {
    int64_t count = 0;
    double bytes = 0;
  };
  void Add(const std::string& group, const char* op, double bytes);
  void AddWait(double seconds);
  void Clear();
  std::map<std::string, Operations> operations() const;  // "tp all_reduce" -> ...
  double wait_seconds() const;

 private:
  mutable std::mutex mu_;
  std::map<std::string, Operations> operations_;
  double wait_seconds_ = 0;
};

// Everything that is done through `inner` and the groups split from it is counted.
CommunicatorPtr CountTraffic(CommunicatorPtr inner, std::shared_ptr<TrafficCounter> counter);

}  // namespace muster
