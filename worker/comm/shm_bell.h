// How a rank sleeps until a peer has done something: a futex in shared memory, rung only when
// somebody listens. Torch-free.
//
// Who wants to sleep: reads `rings`, adds to `awaited` the peers it waits for, looks once more
// whether there is anything to do, and sleeps only while `rings` is what it read. Who has changed
// something rings when its bit is in `awaited`. Both sides write before they read, in one total
// order, so one of them sees the other: no ring is lost. Any number of threads may sleep at a bell.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace muster {

// What a rank of the node is waited for, one bit a rank: that it writes something, or that it reads
// something and so makes room.
struct ShmAwaited {
  uint64_t data = 0, room = 0;
  bool IsIn(const ShmAwaited& other) const {
    return (data & ~other.data) == 0 && (room & ~other.room) == 0;
  }
};

struct ShmBell {
  alignas(64) std::atomic<uint32_t> rings;
  alignas(64) std::atomic<uint64_t> awaited_data, awaited_room;

  // By rank `from`, after it has written, or made room for, what the bell's owner may wait for.
  void RingForData(int from) { RingIf(awaited_data, from); }
  void RingForRoom(int from) { RingIf(awaited_room, from); }
  void RingAlways();

  void Await(const ShmAwaited& peers) {
    awaited_data.fetch_or(peers.data);
    if (peers.room != 0) awaited_room.fetch_or(peers.room);
  }
  // Until rung since `seen` was read from `rings`, or `limit`, or for no reason.
  void Sleep(uint32_t seen, absl::Duration limit);
  // Nobody is to be rung any more for what was awaited until now. Whoever was about to sleep looks
  // again.
  void Hush() {
    awaited_data.exchange(0);
    awaited_room.exchange(0);
    rings.fetch_add(1);
  }

 private:
  void RingIf(std::atomic<uint64_t>& awaited, int from) {
    if ((awaited.load() >> from & 1) == 0) return;
    awaited.exchange(0);
    RingAlways();
  }
};

}  // namespace muster
