// Whose hardware computes wrongly? (design 3, rerun arbiter.) A step that repeats its bad result in
// place is run once more with ranks on other workers. In both runs each rank notes a hash of what
// it gives to every collective operation and of what it ends with. The last stage only observes
// what some rank before it produced, so the rank that is to blame is the one whose contribution
// differs between the two runs although everything that it was given until then is equal. Pure.
//
// Operations are matched by what they are, not by when they ran: the n-th operation of a group, or
// the n-th message from one rank to another on a channel of a group.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// One operation as one rank took part in it, in that rank's order.
struct Fingerprint {
  int64_t sequence = 0;  // of the group on this rank, or of the messages of this kind
  std::string group;     // "world", "tp", ...: with its members, as groups of one name are many
  std::string op;        // "all_reduce", "send 0>1 channel 0", ...
  uint64_t hash = 0;     // of what this rank gave; 0 for what it only received
  bool gives = true;
  bool operator==(const Fingerprint&) const = default;
};
inline constexpr char kResultOp[] = "result";  // the last one: what the step ended with here

// What a rank saw of a run, and where it ran.
struct RunRecord {
  std::string worker;  // as the coordinator knows it; filled in there
  std::string serial;  // of the device
  std::vector<Fingerprint> fingerprints;
  bool complete = true;  // false: there were more than kMaxFingerprints, and none is here
};
// Of a rank in a run: some 25 bytes each in its report, which must fit into a message.
inline constexpr size_t kMaxFingerprints = 32'768;

// One rank's message about the step that it examines.
struct ExamineReport {
  enum class Stage {
    kTransient,  // run again in place it was good, and training has gone on: to be noted
    kInPlace,    // run again in place it was the same: all ranks hold the step
    kElsewhere,  // the run that an order asked for; all ranks hold the step
  };
  Stage stage = Stage::kInPlace;
  int64_t iteration = 0;
  std::string common_json, rank_json;  // its rerun machine (rerun_json.h), for whoever goes on
  std::string finding;                 // of this rank; empty: it followed no rejection
  bool followed = false;               // this rank followed a rejection; then
  bool differs = false;                //   the result was another one in this run,
  bool rejected_again = false;         //   and bad
  double initial_result = 0, result = 0;
  RunRecord run;
};
std::string EncodeExamineReport(const ExamineReport& report);
absl::StatusOr<ExamineReport> DecodeExamineReport(absl::string_view json);

// What the coordinator tells the trainers of an epoch about such a step. (That they shall leave
// with it is a directive: Directive::Kind::kCheckpointAndExit.)
struct ExamineOrder {
  enum class Kind {
    kRerun,   // run it again here, noting fingerprints, and report
    kRepeat,  // forget the examination: the step begins anew
    kAccept,  // the same, and what it rejects is right
  };
  Kind kind = Kind::kRepeat;
  int64_t iteration = 0;
  std::string reason;
  std::string common_json;              // kRerun
  std::vector<std::string> rank_jsons;  // the same, by rank
};
std::string EncodeExamineOrder(const ExamineOrder& order);
absl::StatusOr<ExamineOrder> DecodeExamineOrder(absl::string_view json);
// Is it one of kRerun? Without decoding it all.
bool OrdersRerun(absl::string_view json);

// ---- the judge

struct Difference {
  int rank = 0;
  std::string operation;  // "all_reduce 3 of tp", where the rank's contribution differs first
  uint64_t first = 0, second = 0;
};

struct Comparison {
  bool equal = true;                   // all contributions of all ranks
  bool comparable = true;              // the two runs did the same operations
  std::vector<Difference> convicted;   // with equal inputs and a different output, by rank
  std::optional<Difference> earliest;  // some difference, should nobody be convicted
};
// By rank, both of the same size.
Comparison CompareRuns(const std::vector<RunRecord>& first, const std::vector<RunRecord>& second);

// The workers that one fault on one worker would explain: those that ran each convicted rank in one
// of the two runs. Empty: none, or more than one fault.
std::set<std::string> Suspects(const Comparison& comparison, const std::vector<RunRecord>& first,
                               const std::vector<RunRecord>& second);

}  // namespace muster
