// Stands for a background thread that forms or frees a gloo group. A process that ends while one is
// inside libtorch would crash in its static destructors, so exit waits for them, for a while.
// Thread-safe.
#pragma once

namespace muster {

class LingeringGlooGroup {
 public:
  LingeringGlooGroup();
  ~LingeringGlooGroup();
  LingeringGlooGroup(const LingeringGlooGroup&) = delete;
  LingeringGlooGroup& operator=(const LingeringGlooGroup&) = delete;
};

}  // namespace muster
