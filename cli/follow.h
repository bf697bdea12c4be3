// Follows a job to its end: progress on stdout, every record to whoever wants it.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/patience.h"

namespace muster {

struct FollowOptions {
  bool progress = true;  // print it
  // Every metrics record once, in order.
  std::function<void(const v1::MetricsRecord&)> on_record;
  // Called several times a second; an error ends the following with it.
  std::function<absl::Status()> poll;
  // The coordinator may be away for so long (it restarts).
  absl::Duration patience = Patience::kLimit;
};

// The job as it ended. Errors: NOT_FOUND, UNAVAILABLE, or poll's.
absl::StatusOr<v1::JobStatus> FollowJob(Client* client, const std::string& job_id,
                                        const FollowOptions& options);

// FollowJob with ctrl-C leaving the job alone; returns the exit code. `json`: a line a record and,
// at the end, the job's status, in place of progress.
int WatchJob(Client* client, const std::string& job_id, bool json);

}  // namespace muster
