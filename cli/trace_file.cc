#include "cli/trace_file.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace muster {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;  // of a part

struct Span {
  double begin = 0, end = 0;  // us
};

// Time of `spans` that lies within `frames` (sorted, disjoint), overlaps counted once.
double Covered(std::vector<Span> spans, const std::vector<Span>& frames) {
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  double sum = 0;
  for (const Span& frame : frames) {
    double reached = frame.begin;
    for (const Span& span : spans) {
      if (span.begin >= frame.end) break;
      const double begin = std::max(span.begin, reached), end = std::min(span.end, frame.end);
      if (end <= begin) continue;
      sum += end - begin;
      reached = end;
    }
  }
  return sum;
}

std::string KeyOf(const Json& args) {
  return absl::StrJoin(args.at("ranks").get<std::vector<int>>(), ",");
}

}  // namespace

struct TraceFile::Sums {
  int rank = 0;
  std::vector<Span> iterations, waits, bubbles, operations;
};

TraceFile::TraceFile(std::ostream* out) : out_(out) {
  *out_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
}

absl::Status TraceFile::AddEvent(absl::string_view line, Sums* sums) {
  *out_ << (first_event_ ? "\n" : ",\n") << line;
  first_event_ = false;
  const Json event = Json::parse(line.begin(), line.end());
  if (event.at("ph") != "X") return absl::OkStatus();
  const double begin = event.at("ts"), us = event.at("dur");
  const std::string category = event.at("cat");
  const Span span{begin, begin + us};
  const std::string name = event.at("name");
  if (category == "step" && name.rfind("iteration ", 0) == 0) {
    sums->iterations.push_back(span);
  } else if (category == "wait" && event.at("tid") == 2) {  // of the training thread
    sums->waits.push_back(span);
    AddWait(event, us, sums->rank);
  } else if (category == "bubble") {
    sums->bubbles.push_back(span);
  } else if (category == "communication") {
    sums->operations.push_back(span);
    if (name == "send_recv") return absl::OkStatus();
    const Json& args = event.at("args");
    auto& last = last_starts_[{KeyOf(args), args.at("sequence")}];
    if (last.first <= begin) last = {begin, sums->rank};
  }
  return absl::OkStatus();
}

void TraceFile::AddWait(const Json& event, double us, int rank) {
  if (longest_.size() == kNumLongest && us <= longest_.back().us) return;
  const Json& args = event.at("args");
  const std::string name = event.at("name");  // "all_reduce tp"
  LongWait wait{.us = us,
                .rank = rank,
                .iteration = args.value("iteration", int64_t{0}),
                .sequence = args.at("sequence"),
                .bytes = args.value("bytes", int64_t{0}),
                .op = name.substr(0, name.find(' ')),
                .group = args.at("group"),
                .ranks = args.at("ranks")};
  longest_.insert(
      std::upper_bound(longest_.begin(), longest_.end(), wait,
                       [](const LongWait& a, const LongWait& b) { return a.us > b.us; }),
      std::move(wait));
  if (longest_.size() > kNumLongest) longest_.pop_back();
}

absl::Status TraceFile::AddPart(absl::string_view lines) {
  // A part comes from another process: whatever is wrong with it is found here.
  try {
    size_t end = std::min(lines.find('\n'), lines.size());
    RankTime time;
    time.head = nlohmann::ordered_json::parse(lines.begin(), lines.begin() + end);
    if (time.head.at("format") != kFormat) {
      return absl::InvalidArgumentError(
          absl::StrCat("a part of the trace has format ", time.head.at("format").dump(),
                       "; this muster reads ", kFormat, ": install one release everywhere"));
    }
    time.rank = time.head.at("rank");
    Sums sums{.rank = time.rank};
    while (end < lines.size()) {
      lines.remove_prefix(end + 1);
      end = std::min(lines.find('\n'), lines.size());
      if (end > 0) RETURN_IF_ERROR(AddEvent(lines.substr(0, end), &sums));
    }
    std::sort(sums.iterations.begin(), sums.iterations.end(),
              [](const Span& a, const Span& b) { return a.begin < b.begin; });
    time.total_us = Covered(sums.iterations, sums.iterations);
    time.bubble_us = Covered(sums.bubbles, sums.iterations);
    time.wait_us = Covered(std::move(sums.waits), sums.iterations) - time.bubble_us;
    time.communication_us = Covered(std::move(sums.operations), sums.iterations);
    ranks_.push_back(std::move(time));
    return absl::OkStatus();
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("a part of the trace cannot be read: ", error.what()));
  }
}

void TraceFile::Finish(nlohmann::ordered_json more) {
  nlohmann::ordered_json heads = nlohmann::ordered_json::array();
  for (const RankTime& rank : ranks_) heads.push_back(rank.head);
  more["clock_error_us"] = clock_error_us();
  more["dropped_events"] = dropped_events();
  more["ranks"] = std::move(heads);
  *out_ << "\n],\"otherData\":" << more.dump() << "}\n";
}

std::vector<LongWait> TraceFile::LongestWaits() const {
  std::vector<LongWait> waits = longest_;
  for (LongWait& wait : waits) {
    if (wait.op == "send_recv") continue;
    const auto last = last_starts_.find({absl::StrJoin(wait.ranks, ","), wait.sequence});
    if (last != last_starts_.end()) wait.last_rank = last->second.second;
  }
  return waits;
}

int64_t TraceFile::dropped_events() const {
  int64_t sum = 0;
  for (const RankTime& rank : ranks_) sum += rank.head.value("dropped_events", int64_t{0});
  return sum;
}

double TraceFile::clock_error_us() const {
  double largest = 0;
  for (const RankTime& rank : ranks_)
    largest = std::max(largest, rank.head.value("clock_error_us", 0.0));
  return largest;
}

}  // namespace muster
