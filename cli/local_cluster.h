// A whole cluster on this machine: a coordinator and one agent with N workers, as child processes
// that end with this one. Not thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/child.h"

namespace muster {

class LocalCluster {
 public:
  struct Options {
    std::string state_dir;  // made when it is not there
    int port = 0;           // of the coordinator; 0: any
    std::string device = "cpu";
    int num_workers = 1;
    std::string trainer;  // empty: muster-trainer beside muster-worker
  };
  // Starts both and waits until the coordinator listens. Writes STATE_DIR/cluster.json.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const Options& options);

  const std::string& address() const { return address_; }
  // Of its page for people, and of its metrics.
  const std::string& http_address() const { return http_address_; }
  // An error when one of the two has ended.
  absl::Status Check();
  // cluster.json with the job's id too.
  absl::Status WriteDescription(const std::string& job_id) const;
  // A file of the state folder, written whole or not at all.
  absl::Status WriteStateFile(const std::string& name, const std::string& text) const;
  // SIGTERM, and the kill of what is still there after `grace`: the agent first, so that the
  // coordinator hears the end of its trainers.
  void Stop(absl::Duration grace);

 private:
  explicit LocalCluster(const Options& options) : options_(options) {}
  absl::Status StartAll();
  absl::StatusOr<std::string> WaitForAddress();

  const Options options_;
  std::string address_, http_address_;
  std::unique_ptr<Child> coordinator_, worker_;
};

}  // namespace muster
