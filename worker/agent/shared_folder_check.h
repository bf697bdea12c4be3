// Carries out worker/core/shared_folder.h: a thread a check, since a network file system may hang
// and an answer of the rendezvous may take its time. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/control/messages.h"
#include "worker/core/shared_folder.h"

namespace muster {

class SharedFolderCheck {
 public:
  struct Options {
    FolderRole role = FolderRole::kWriter;  // not kNone
    std::string node;                       // this one
    std::string folder;                     // checkpoint.save
    std::string job_id;
    int64_t epoch = 0;
    absl::Duration key_limit = absl::Minutes(2);    // for rank 0's agent to have written
    absl::Duration look_limit = absl::Seconds(10);  // for its mark to be seen here
    // The rendezvous; `reply` runs once, on any thread, possibly after this object's end.
    std::function<void(const std::string& job_id, const StoreRequestMessage&,
                       std::function<void(StoreReplyMessage)> reply)>
        ask;
  };
  // `done` runs once on the check's thread, unless the object ends before.
  SharedFolderCheck(Options options, std::function<void(absl::Status)> done);
  // Ends the check and removes a writer's mark.
  ~SharedFolderCheck();
  SharedFolderCheck(const SharedFolderCheck&) = delete;

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace muster
