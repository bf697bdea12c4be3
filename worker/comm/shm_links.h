// A socket from each rank of a node to each other: it hands the memory over when they meet, and its
// end tells at once that the peer has gone, however. Nothing of it is in the file system (abstract
// names, chosen by the kernel). Torch-free.
// Thread-safety: Close from any thread; the rest from one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/shm_arena.h"

namespace muster {

// What a rank tells the others through the rendezvous.
struct ShmAddress {
  // Kernel and network namespace: ranks in which these are equal can reach each other. Empty: this
  // rank cannot share memory.
  std::string node;
  std::string socket;  // the abstract name
  uint64_t nonce = 0;  // known to the ranks of the job only: who knows it is let in

  std::string Encode() const;
  static absl::StatusOr<ShmAddress> Decode(const std::string& text);
};

class ShmLinks {
 public:
  // Makes this rank's memory and opens its socket. UNAVAILABLE where the system refuses.
  static absl::StatusOr<std::unique_ptr<ShmLinks>> Open();
  ~ShmLinks();

  const ShmAddress& address() const { return address_; }

  // Meets the ranks at `addresses` (by place on the node; this rank's own is at `place`) and
  // returns the memory of all. Errors: ABORTED after Close; DEADLINE_EXCEEDED names the places that
  // did not come; UNAVAILABLE when one went away or cannot be reached.
  absl::StatusOr<std::vector<std::shared_ptr<ShmArena>>> Meet(
      const std::vector<ShmAddress>& addresses, int place, absl::Duration limit);
  // After Meet: blocks until Close; tells of each peer that goes.
  void Watch(const std::function<void(int place)>& gone);
  // Ends Meet and Watch; the peers see this rank go.
  void Close();

 private:
  ShmLinks() = default;
  absl::Status SendHello(int socket, int place, uint64_t to_nonce);
  // The place of whoever sent it, and its memory; -1 for who does not belong here.
  absl::StatusOr<int> ReceiveHello(int socket, const std::vector<ShmAddress>& addresses);

  ShmAddress address_;
  int listener_ = -1, wake_ = -1;
  std::vector<int> sockets_;  // by place; -1: none
  std::vector<std::shared_ptr<ShmArena>> arenas_;
};

}  // namespace muster
