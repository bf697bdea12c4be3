// What a followed job looks like: a bar that is redrawn on a terminal, plain lines elsewhere. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "muster/v1/job.pb.h"

namespace muster {

class Progress {
 public:
  struct Options {
    bool terminal = false;                           // redraw one line
    int columns = 100;                               // of the terminal
    int64_t log_interval = 100;                      // plain: a line every so many iterations,
    absl::Duration least_often = absl::Seconds(10);  // or after this time
  };
  Progress(Options options, std::ostream* out) : options_(options), out_(*out) {}

  // `job`: as last seen; `now`: any steady time.
  void OnRecord(const v1::JobStatus& job, const v1::MetricsRecord& record, absl::Duration now);
  // State changes, evaluations and checkpoints since the last call.
  void OnJob(const v1::JobStatus& job, absl::Duration now);
  // The last lines: how it ended, and why.
  void OnEnd(const v1::JobStatus& job);
  void Note(const std::string& text);  // a line of its own

 private:
  std::string Line(const v1::MetricsRecord& record, int64_t train_iters) const;
  std::string Bar(const v1::MetricsRecord& record, int64_t train_iters) const;
  std::string Eta(int64_t iteration, int64_t train_iters) const;
  void PrintLine(const std::string& line);

  const Options options_;
  std::ostream& out_;
  bool bar_shown_ = false;
  std::optional<absl::Duration> last_drawn_;
  int64_t last_line_iteration_ = 0;
  std::optional<double> mean_ms_;  // of a step, smoothed
  v1::JobState last_state_ = v1::JOB_STATE_UNSPECIFIED;
  std::string last_progress_;
  int num_evaluations_ = 0, num_checkpoints_ = 0;
};

}  // namespace muster
