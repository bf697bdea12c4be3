// Which snapshot lies where, and what is known of it without reading it. Plain values.
#pragma once

#include <compare>
#include <cstdint>

namespace muster {

struct SnapshotSlot {
  int64_t rank = 0, slot = 0;
  auto operator<=>(const SnapshotSlot&) const = default;
};

// What a slot's header says of its content.
struct SnapshotStamp {
  int64_t iteration = 0;  // committed steps that it contains
  int64_t epoch = 0;      // of the job, when it was taken
  int64_t index_bytes = 0, content_bytes = 0;
  uint32_t index_crc = 0, content_crc = 0;
  bool operator==(const SnapshotStamp&) const = default;
};

}  // namespace muster
