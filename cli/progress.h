// What a followed job looks like: a line that is redrawn on a terminal, plain lines elsewhere. It
// hides no cursor and changes no mode of the terminal, so that nothing is left behind whatever ends
// the process. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
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
    int columns = 80;                                // of the terminal,
    std::function<int()> current_columns;            // or whoever knows it at this moment
    int64_t log_interval = 100;                      // plain: a line every so many iterations,
    absl::Duration least_often = absl::Seconds(10);  // or after this time
  };
  Progress(Options options, std::ostream* out) : options_(options), out_(*out) {}
  ~Progress();  // ends the line that is drawn
  Progress(const Progress&) = delete;

  // `job`: as last seen; `now`: any steady time.
  void OnRecord(const v1::JobStatus& job, const v1::MetricsRecord& record, absl::Duration now);
  // State changes, waits that are overdue, evaluations and checkpoints since the last call.
  void OnJob(const v1::JobStatus& job, absl::Duration now);
  // The last lines: how it ended, and why.
  void OnEnd(const v1::JobStatus& job);
  void Note(const std::string& text);  // a line of its own
  // Why the job recovers has a line already: its state does not say it again.
  void set_told_reason(const std::string& reason) { told_reason_ = reason; }
  // The terminal may have another width: what is drawn is drawn anew.
  void OnResize();

 private:
  std::string Line(const v1::MetricsRecord& record, int64_t train_iters) const;
  std::string Bar(const v1::MetricsRecord& record, int64_t train_iters) const;
  std::string Eta(int64_t iteration, int64_t train_iters) const;
  std::string Detail(const v1::JobStatus& job) const;
  void OnState(const v1::JobStatus& job, absl::Duration now);
  void OnWait(const v1::JobStatus& job);
  void PrintLine(const std::string& line);
  void Draw(const std::string& text);  // in place of what was drawn
  void LookAtColumns();                // before a text is made for them
  void Erase();
  // The newest record, if it is not drawn yet and the last drawing is long enough ago.
  void DrawNewest(absl::Duration now, bool at_once);

  Options options_;
  std::ostream& out_;
  int drawn_columns_ = 0;  // 0: nothing is drawn
  std::optional<absl::Duration> last_drawn_, last_progress_time_;
  int64_t last_line_iteration_ = 0;
  std::optional<v1::MetricsRecord> last_record_;
  bool undrawn_ = false;  // last_record_
  int64_t train_iters_ = 0;
  std::optional<double> mean_ms_;  // of a step, smoothed
  v1::JobState last_state_ = v1::JOB_STATE_UNSPECIFIED;
  std::string last_progress_, overdue_phase_, told_reason_;
  int num_evaluations_ = 0, num_checkpoints_ = 0;
};

}  // namespace muster
