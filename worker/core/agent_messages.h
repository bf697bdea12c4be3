// What goes between the coordinator and a node's agent, as plain values: the meaning is that of
// proto/muster/v1/membership.proto, which worker/agent converts to and from. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/control/device_check.h"
#include "common/control/messages.h"

namespace muster {

// One attempt of one rank on one worker.
struct AssignmentKey {
  std::string worker, job_id;
  int64_t epoch = 0;
  bool operator==(const AssignmentKey&) const = default;
};

// ---- coordinator -> agent
struct WelcomeOrder {
  int64_t reports_through = 0;         // batches up to this one are known
  std::vector<AssignmentKey> running;  // what this node should be running
};
struct LaunchOrder {
  std::string job_id;
  int64_t epoch = 0;
  std::string spec_json;
  int world_size = 1;
  int64_t directives_through = 0;
  int num_helpers = 0;
  int64_t ledger_through = 0;
  std::string examine_json;
  struct Assignment {
    std::string worker;
    int rank = 0;  // -1: a spare, which makes itself warm and waits
    std::string host_address, device;
    int num_threads = 0;  // 0: the agent's own choice
    int buddy = -1;
  };
  std::vector<Assignment> assignments;
};
inline AssignmentKey KeyOf(const std::string& worker, const LaunchOrder& launch) {
  return {.worker = worker, .job_id = launch.job_id, .epoch = launch.epoch};
}
struct UniqueIdOrder {
  std::string job_id;
  int64_t epoch = 0;
  std::string id;
};
struct DirectiveOrder {
  std::string job_id;
  int64_t epoch = 0;
  Directive directive;
};
struct AbortOrder {
  std::string job_id;
  int64_t epoch = 0;
  std::string reason;
};
struct StopOrder {
  AssignmentKey assignment;
  absl::Duration grace;
  std::string reason;
};
struct AckOrder {
  int64_t through = 0;
};
struct ForgetJobOrder {
  std::string job_id;
};
struct ProbeJobOrder {
  std::string job_id;
  int64_t epoch = 0, request = 0;
};
using CoordinatorOrder =
    std::variant<WelcomeOrder, LaunchOrder, UniqueIdOrder, DirectiveOrder, AbortOrder, StopOrder,
                 AckOrder, ForgetJobOrder, ProbeJobOrder>;

// ---- agent -> coordinator
struct NodeLogLines {
  std::vector<std::string> lines;
};
struct TrainerExited {  // always an assignment's last report
  int exit_code = 0;
  int signal = 0;            // 0: it exited by itself
  std::string launch_error;  // not empty: it never ran
  std::vector<std::string> last_log_lines;
  int64_t pid = 0;
  bool oom_killed = false;  // the kernel killed it, or a child of it, for want of memory
};
// A trainer's answer to a probe, and its process as seen from outside.
struct TrainerProbed {
  int64_t request = 0;
  bool running = false;
  std::string process_state;               // the letter of /proc/PID/stat; empty: unknown
  double cpu_ms = 0;                       // of the whole process, so far
  std::optional<ProbeReplyMessage> reply;  // none: it did not answer in time
};
struct NodeReport {
  AssignmentKey assignment;
  int rank = 0;
  std::variant<PhaseMessage, PublishUniqueIdMessage, StepMessage, EvaluationMessage,
               CheckpointMessage, EventMessage, DoneMessage, FailedMessage, TrainerExited,
               NodeLogLines, RestoredMessage, RankTimesMessage, ExamineMessage, TrainerProbed,
               DeviceCheck>
      report;
};
// Numbered 1, 2, 3, ... within an incarnation; kept until acknowledged.
struct NodeReportBatch {
  int64_t sequence = 0;
  std::vector<NodeReport> reports;
};

// How far a job's trainers on this node have come: what heartbeats carry.
struct JobProgress {
  std::string job_id;
  int64_t epoch = 0;
  int64_t iteration = 0;  // last committed one, the highest of this node's ranks
  bool operator==(const JobProgress&) const = default;
};

}  // namespace muster
