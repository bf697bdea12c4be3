// RerunArbiter's part that outlives the coordinator: what it has concluded, and the reports that it
// will still compare. A report is written once, with the run that it is of in its key, so that the
// end of a run rewrites nothing.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "coordinator/core/durable_json.h"
#include "coordinator/core/rerun_machine.h"

namespace muster {
namespace {

constexpr EnumName<RerunArbiter::State> kStates[] = {
    {RerunArbiter::State::kIdle, "idle"},
    {RerunArbiter::State::kInPlace, "in_place"},
    {RerunArbiter::State::kElsewhere, "elsewhere"},
};

struct SavedEvidence {
  int rank = -1;
  std::string first;  // a hash, as hex
  std::string text;
};

struct SavedArbiter {
  RerunArbiter::State state = RerunArbiter::State::kIdle;
  int64_t epoch = 0, run = 0, num_first = 0, noted_transient = -1, ruled_iteration = -1;
  int runs = 0, rulings = 0;
  std::vector<std::string> suspects;
  std::optional<SavedEvidence> evidence;
  std::optional<LeaveRuling> left;
};

template <class V, class M>
void VisitArbiter(V& v, M& m) {
  v.Enum("state", m.state, kStates);
  v("epoch", m.epoch);
  v("run", m.run);
  v("num_first", m.num_first);
  v.Always("noted_transient", m.noted_transient);
  v.Always("ruled_iteration", m.ruled_iteration);
  v("runs", m.runs);
  v("rulings", m.rulings);
  v("suspects", m.suspects);
  v.Nested("evidence", m.evidence, [](auto& inner, auto& evidence) {
    inner.Always("rank", evidence.rank);
    inner("first", evidence.first);
    inner("text", evidence.text);
  });
  v.Nested("left", m.left, [](auto& inner, auto& left) {
    inner("iteration", left.iteration);
    inner("exit_code", left.exit_code);
    inner("reason", left.reason);
  });
}

struct SavedReport {
  std::string worker, report;
};

template <class V, class M>
void VisitReport(V& v, M& m) {
  v("worker", m.worker);
  v("report", m.report);
}

std::string ReportText(const ExamineReport& report) {
  SavedReport saved{report.run.worker, EncodeExamineReport(report)};
  JsonWriter writer;
  VisitReport(writer, saved);
  return writer.Finish();
}

std::string KeyOf(const std::string& base, const std::pair<int64_t, int>& key) {
  return absl::StrCat(base, "/", key.first, "/", key.second);
}

}  // namespace

void RerunArbiter::KeepReport(int rank) {
  const ReportKey key{run_, rank};
  std::string text = ReportText(reports_.at(rank));
  const auto before = kept_.find(key);
  const size_t replaced = before == kept_.end() ? 0 : before->second;
  if (kept_bytes_ - replaced + text.size() > kMaxDurableBytes) {
    if (replaced == 0) return;
    kept_bytes_ -= replaced;
    kept_.erase(before);
    unsaved_reports_[key] = std::nullopt;
    return;
  }
  kept_bytes_ += text.size() - replaced;
  kept_[key] = text.size();
  unsaved_reports_[key] = std::move(text);
}

void RerunArbiter::DropReports(std::map<int, ExamineReport>* reports, int64_t run) {
  for (const auto& [rank, report] : *reports) {
    const auto kept = kept_.find({run, rank});
    if (kept == kept_.end()) continue;
    kept_bytes_ -= kept->second;
    unsaved_reports_[kept->first] = std::nullopt;
    kept_.erase(kept);
  }
  reports->clear();
}

void RerunArbiter::SaveState(const std::string& base, DurableChanges* changes) const {
  SavedArbiter saved{.state = state_,
                     .epoch = epoch_,
                     .run = run_,
                     .num_first = num_first_,
                     .noted_transient = noted_transient_,
                     .ruled_iteration = ruled_iteration_,
                     .runs = runs_,
                     .rulings = rulings_,
                     .suspects = {suspects_.begin(), suspects_.end()},
                     .left = left_};
  if (evidence_.has_value()) {
    saved.evidence =
        SavedEvidence{evidence_->rank, absl::StrFormat("%016x", evidence_->first), evidence_->text};
  }
  JsonWriter writer;
  VisitArbiter(writer, saved);
  changes->records.push_back({base, writer.Finish()});
}

void RerunArbiter::TakeChanges(const std::string& base, DurableChanges* changes) {
  if (state_unsaved_) SaveState(base, changes);
  for (auto& [key, text] : unsaved_reports_)
    changes->records.push_back({KeyOf(base, key), std::move(text)});
  state_unsaved_ = false;
  unsaved_reports_.clear();
}

void RerunArbiter::SaveAll(const std::string& base, DurableChanges* changes) const {
  SaveState(base, changes);
  for (const auto& [key, bytes] : kept_) {
    const auto& reports = key.first == run_ ? reports_ : first_;
    changes->records.push_back({KeyOf(base, key), ReportText(reports.at(key.second))});
  }
}

absl::Status RerunArbiter::RestoreRecord(const std::string& where, absl::string_view record,
                                         const std::string& value) {
  JsonReader reader(where, value);
  if (record.empty()) {
    SavedArbiter saved;
    VisitArbiter(reader, saved);
    constexpr int64_t kTooLarge = int64_t{1} << 62;
    reader.Check(saved.run >= 0 && saved.run < kTooLarge, "run",
                 "must be 0 or more, and not that large");
    reader.Check(saved.runs >= 0 && saved.runs <= kMaxRuns, "runs",
                 absl::StrCat("must be 0 to ", kMaxRuns));
    reader.Check(saved.rulings >= 0 && saved.rulings <= kMaxRulings + 1, "rulings",
                 absl::StrCat("must be 0 to ", kMaxRulings + 1));
    uint64_t first = 0;
    if (saved.evidence.has_value()) {
      reader.Check(absl::SimpleHexAtoi(saved.evidence->first, &first), "evidence, first",
                   "must be a hexadecimal number");
      reader.Check(saved.evidence->rank >= 0, "evidence, rank", "must be 0 or more");
    }
    RETURN_IF_ERROR(reader.status());
    state_ = saved.state;
    epoch_ = saved.epoch;
    run_ = saved.run;
    num_first_ = saved.num_first;
    noted_transient_ = saved.noted_transient;
    ruled_iteration_ = saved.ruled_iteration;
    runs_ = saved.runs;
    rulings_ = saved.rulings;
    suspects_ = {saved.suspects.begin(), saved.suspects.end()};
    if (saved.evidence.has_value()) evidence_ = {saved.evidence->rank, first, saved.evidence->text};
    left_ = std::move(saved.left);
    return absl::OkStatus();
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(record, '/');
  ReportKey key;
  const bool numbers = parts.size() == 2 && absl::SimpleAtoi(parts[0], &key.first) &&
                       absl::SimpleAtoi(parts[1], &key.second) && key.second >= 0;
  if (!numbers || (key.first != run_ && key.first != run_ - 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": must be of run ", run_ - 1, " or ", run_, ", and end in a rank"));
  }
  SavedReport saved;
  VisitReport(reader, saved);
  RETURN_IF_ERROR(reader.status());
  absl::StatusOr<ExamineReport> report = DecodeExamineReport(saved.report);
  if (!report.ok()) return Annotate(report.status(), where);
  report->run.worker = saved.worker;
  (key.first == run_ ? reports_ : first_)[key.second] = *std::move(report);
  kept_[key] = value.size();
  kept_bytes_ += value.size();
  return absl::OkStatus();
}

void RerunArbiter::FinishRestore(int world_size, absl::string_view order_json) {
  if (runs_ > 0 && OrdersRerun(order_json)) {
    // What cannot be read is as if it were not there: the step begins anew.
    rerun_ = DecodeExamineOrder(order_json).value_or(ExamineOrder{});
  }
  // Of a rank that is not there.
  if (evidence_.has_value() && evidence_->rank >= world_size) Forget();
}

}  // namespace muster
