#include "worker/train/trace_json.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

// Tracks of a rank ("tid"). Groups follow, then what other threads compute and wait for.
constexpr int kComputation = 1, kWaits = 2, kBubbles = 3, kFirstGroup = 10, kOtherThreads = 10'000;

// FNV-1a: the same on the rank that sends and on the one that receives.
uint64_t Fingerprint(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// Microseconds, as the format wants them, with all digits of the nanoseconds.
std::string Micros(int64_t ns) {
  const char* const sign = ns < 0 ? "-" : "";
  const uint64_t magnitude = ns < 0 ? -static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  return absl::StrFormat("%s%d.%03d", sign, magnitude / 1000, magnitude % 1000);
}

class Writer {
 public:
  Writer(const TraceHead& head, const TraceData& data) : head_(head), data_(data) {
    const auto pipeline = head_.groups.find("pp");
    if (pipeline != head_.groups.end()) pipeline_ = pipeline->second;
    receives_.assign(data_.events.size(), false);
    for (const TraceEvent& event : data_.events) {
      if (event.kind == TraceKind::kTransfer && !event.is_send) receives_[event.op] = true;
      if (IsPass(event)) passes_.push_back(&event);
    }
  }

  std::string Write() {
    WriteHead();
    NameProcess();
    AssignGroupTracks();
    for (size_t i = 0; i < data_.events.size(); ++i) WriteEvent(i);
    return std::move(text_);
  }

 private:
  static bool IsPass(const TraceEvent& event) {
    return event.kind == TraceKind::kForward || event.kind == TraceKind::kBackward;
  }

  int64_t Time(int64_t local_ns) const {
    return head_.clock.ToReference(local_ns) - head_.origin_ns;
  }

  void WriteHead() {
    const RankCoordinates& at = head_.coordinates;
    int64_t unfinished = 0;
    for (const TraceEvent& event : data_.events) {
      unfinished += event.kind != TraceKind::kTransfer && event.end_ns == 0;
    }
    Json groups = Json::object();
    for (const auto& [name, ranks] : head_.groups) groups[name] = ranks;
    const Json json = {
        {"format", kTraceFormat},
        {"rank", head_.rank},
        {"world_size", head_.world_size},
        {"tp", at.tp},
        {"cp", at.cp},
        {"ep", at.ep},
        {"dp", at.dp},
        {"pp", at.pp},
        {"device", head_.device},
        {"directive", head_.directive},
        {"first_iteration", head_.first_iteration},
        {"iterations", head_.iterations},
        {"requested_iterations", head_.requested},
        {"layers", head_.layers},
        {"groups", std::move(groups)},
        {"events", data_.events.size()},
        {"dropped_events", data_.num_dropped},
        {"unfinished_events", unfinished},
        {"clocks", head_.num_clocks},
        {"shared_clock", head_.shared_clock},
        {"clock_error_us", static_cast<double>(head_.clock.error_ns()) / 1e3},
        {"clock_drift_us_per_s", head_.clock.drift_ns_per_s() / 1e3},
        // Kernels of a GPU run later than the host issues them.
        {"times", head_.device == "cpu" ? "computed" : "issued by the host"},
    };
    Line(json.dump(-1, ' ', true, Json::error_handler_t::replace));
  }

  void Line(const std::string& line) { absl::StrAppend(&text_, line, "\n"); }

  void Meta(const char* what, int track, const Json& args) {
    Line(Json({{"ph", "M"}, {"pid", head_.rank}, {"tid", track}, {"name", what}, {"args", args}})
             .dump());
  }
  void NameTrack(int track, const std::string& name) {
    Meta("thread_name", track, {{"name", name}});
    Meta("thread_sort_index", track, {{"sort_index", track}});
  }

  void NameProcess() {
    const RankCoordinates& at = head_.coordinates;
    Meta("process_name", 0,
         {{"name", absl::StrCat("rank ", head_.rank, " (tp ", at.tp, ", cp ", at.cp, ", pp ", at.pp,
                                ", dp ", at.dp, ", ep ", at.ep, ")")}});
    Meta("process_labels", 0, {{"labels", head_.device}});
    Meta("process_sort_index", 0, {{"sort_index", head_.rank}});
    NameTrack(kComputation, "computation");
    NameTrack(kWaits, "waits");
    if (!pipeline_.empty()) NameTrack(kBubbles, "pipeline bubbles");
  }

  // "world", else the shortest name of the job's groups that are these ranks.
  std::string GroupName(const TraceGroup& group) const {
    std::string label;
    for (const auto& [name, ranks] : head_.groups) {
      if (ranks != group.ranks || label == "world") continue;
      if (label.empty() || name == "world" || name.size() < label.size()) label = name;
    }
    if (label.empty()) return group.name;
    // A second communicator of the same ranks: "pp (channel 1)".
    const size_t note = group.name.find(" (");
    return note == std::string::npos ? label : label + group.name.substr(note);
  }

  void AssignGroupTracks() {
    tracks_.assign(data_.events.size(), 0);
    int next = kFirstGroup;
    for (const TraceGroup& group : data_.groups) group_names_.push_back(GroupName(group));
    // By name, so that all ranks have them in the same order.
    std::vector<size_t> order(data_.groups.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [this](size_t a, size_t b) { return group_names_[a] < group_names_[b]; });
    for (const size_t g : order) {
      std::vector<size_t> ops;
      for (size_t i = 0; i < data_.events.size(); ++i) {
        const TraceEvent& event = data_.events[i];
        if (event.kind == TraceKind::kOp && event.group == static_cast<int>(g) && event.end_ns != 0)
          ops.push_back(i);
      }
      std::stable_sort(ops.begin(), ops.end(), [this](size_t a, size_t b) {
        return data_.events[a].start_ns < data_.events[b].start_ns;
      });
      std::vector<std::pair<int64_t, int64_t>> spans;
      for (const size_t i : ops)
        spans.emplace_back(data_.events[i].start_ns, data_.events[i].end_ns);
      const std::vector<int> lanes = AssignTracks(spans);
      int used = 1;
      for (size_t k = 0; k < ops.size(); ++k) {
        tracks_[ops[k]] = next + lanes[k];
        used = std::max(used, lanes[k] + 1);
      }
      for (int lane = 0; lane < used; ++lane) {
        NameTrack(next + lane, absl::StrCat("group ", group_names_[g],
                                            lane == 0 ? "" : absl::StrCat(" (", lane + 1, ")")));
      }
      next += used;
    }
  }

  static int ThreadTrack(const TraceEvent& event, int track) {
    return event.thread == 0 ? track : kOtherThreads + 10 * event.thread + track;
  }

  void Span(const TraceEvent& event, int track, const std::string& name, const char* category,
            Json args) {
    const int64_t start = Time(event.start_ns), end = std::max(Time(event.end_ns), start);
    if (event.thread != 0 && threads_named_.emplace(track, true).second) {
      NameTrack(track, absl::StrCat("thread ", event.thread, ": ",
                                    track % 10 == kWaits ? "waits" : "computation"));
    }
    if (event.iteration >= 0) args["iteration"] = event.iteration;
    absl::StrAppend(&text_, "{\"ph\":\"X\",\"pid\":", head_.rank, ",\"tid\":", track,
                    ",\"ts\":", Micros(start), ",\"dur\":", Micros(end - start),
                    ",\"name\":", Json(name).dump(), ",\"cat\":\"", category,
                    "\",\"args\":", args.dump(-1, ' ', true), "}\n");
  }

  static Json PassArgs(const TraceEvent& event) {
    Json args = Json::object();
    if (event.microbatch < 0) return args;
    args["microbatch"] = event.microbatch;
    args["chunk"] = event.chunk;
    return args;
  }

  void WriteEvent(size_t i) {
    const TraceEvent& event = data_.events[i];
    if (event.end_ns == 0 && event.kind != TraceKind::kTransfer) return;  // counted in the head
    const int track = ThreadTrack(event, kComputation);
    switch (event.kind) {
      case TraceKind::kIteration:
        return Span(event, track, absl::StrCat("iteration ", event.iteration), "step",
                    Json::object());
      case TraceKind::kPart:
        return Span(event, track, event.name, "step", PassArgs(event));
      case TraceKind::kForward:
      case TraceKind::kBackward:
        return Span(event, track, absl::StrCat(event.name, " ", event.microbatch), "pass",
                    PassArgs(event));
      case TraceKind::kLayerForward:
      case TraceKind::kLayerBackward:
        return WriteLayer(event, track);
      case TraceKind::kData:
        return Span(event, track, event.name, "data", PassArgs(event));
      case TraceKind::kOp:
        return Span(event, tracks_[i], event.name, "communication", OpArgs(event));
      case TraceKind::kWait:
        return WriteWait(event);
      case TraceKind::kTransfer:
        return WriteTransfer(event);
    }
  }

  void WriteLayer(const TraceEvent& event, int track) {
    Json args = PassArgs(event);
    int64_t layer = event.unit;
    if (event.chunk >= 0 && event.chunk < static_cast<int>(head_.layers.size()) &&
        event.unit < static_cast<int>(head_.layers[event.chunk].size())) {
      layer = head_.layers[event.chunk][event.unit];
    }
    args["layer"] = layer;
    args["pass"] = event.kind == TraceKind::kLayerForward ? "forward" : "backward";
    Span(event, track, absl::StrCat("layer ", layer), "layer", std::move(args));
  }

  Json OpArgs(const TraceEvent& op) const {
    Json args = PassArgs(op);
    args["group"] = group_names_[op.group];
    args["ranks"] = data_.groups[op.group].ranks;
    args["sequence"] = op.number;
    // Of a send_recv: sent, received.
    args["bytes"] = std::max(op.bytes_in, op.bytes_out);
    if (op.bytes_out != 0) {
      args["bytes_in"] = op.bytes_in;
      args["bytes_out"] = op.bytes_out;
    }
    if (*op.dtype != '\0') args["dtype"] = op.dtype;
    return args;
  }

  void WriteWait(const TraceEvent& wait) {
    const TraceEvent& op = data_.events[wait.op];
    Json args = OpArgs(op);
    Span(wait, ThreadTrack(wait, kWaits), absl::StrCat(op.name, " ", group_names_[op.group]),
         "wait", args);
    if (!IsBubble(wait)) return;
    // What the pipeline does next tells what it waited for.
    Json bubble = Json::object();
    const auto next = std::lower_bound(
        passes_.begin(), passes_.end(), wait.end_ns,
        [](const TraceEvent* pass, int64_t time) { return pass->start_ns < time; });
    if (next != passes_.end()) {
      bubble = PassArgs(**next);
      bubble["before"] = (*next)->name;
    }
    Span(wait, kBubbles, "bubble", "bubble", std::move(bubble));
  }

  // The pipeline had nothing to compute: a wait for a receive from another stage, between passes.
  bool IsBubble(const TraceEvent& wait) const {
    return wait.microbatch < 0 && wait.thread == 0 && pipeline_.size() > 1 &&
           data_.groups[data_.events[wait.op].group].ranks == pipeline_ && receives_[wait.op];
  }

  // An arrow from the beginning of the sending operation to the end of the receiving one.
  void WriteTransfer(const TraceEvent& message) {
    const TraceEvent& op = data_.events[message.op];
    if (op.end_ns == 0) return;
    const int from = message.is_send ? head_.rank : message.peer;
    const int to = message.is_send ? message.peer : head_.rank;
    const uint64_t id =
        Fingerprint(absl::StrCat(absl::StrJoin(data_.groups[message.group].ranks, ","), "/", from,
                                 "/", to, "/", message.channel, "/", message.number));
    const int64_t start = Time(op.start_ns), end = Time(op.end_ns);
    absl::StrAppend(&text_, "{\"ph\":\"", message.is_send ? "s" : "f", "\",\"pid\":", head_.rank,
                    ",\"tid\":", tracks_[message.op],
                    ",\"ts\":", Micros(message.is_send ? start : std::max(start, end - 1)),
                    ",\"id\":\"0x", absl::Hex(id), "\",\"name\":\"message\",\"cat\":\"message\"");
    // A viewer wants the arguments once, and the arrow's head at what encloses it.
    if (message.is_send) {
      absl::StrAppend(&text_, ",\"args\":{\"from\":", from, ",\"to\":", to,
                      ",\"channel\":", message.channel, ",\"bytes\":", message.bytes_in, "}}\n");
    } else {
      absl::StrAppend(&text_, ",\"bp\":\"e\"}\n");
    }
  }

  const TraceHead& head_;
  const TraceData& data_;
  std::vector<int> pipeline_;              // ranks; empty: no pipeline
  std::vector<bool> receives_;             // by event: an operation that receives messages
  std::vector<const TraceEvent*> passes_;  // in the order of their starts
  std::vector<std::string> group_names_;
  std::vector<int> tracks_;  // by event, of operations
  std::map<int, bool> threads_named_;
  std::string text_;
};

}  // namespace

std::vector<int> AssignTracks(absl::Span<const std::pair<int64_t, int64_t>> spans) {
  std::vector<int> tracks;
  std::vector<int64_t> ends;  // of each track's last span
  for (const auto& [start, end] : spans) {
    size_t track = 0;
    while (track < ends.size() && ends[track] > start) ++track;
    if (track == ends.size()) ends.push_back(0);
    ends[track] = end;
    tracks.push_back(static_cast<int>(track));
  }
  return tracks;
}

std::string TraceLines(const TraceHead& head, const TraceData& data) {
  return Writer(head, data).Write();
}

}  // namespace muster
