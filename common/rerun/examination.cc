#include "common/rerun/examination.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace muster {
namespace {

using nlohmann::json;

json Number(double value) {
  if (std::isfinite(value)) return value;
  return absl::StrCat(value);
}

double NumberFrom(const json& value) {
  if (!value.is_string()) return value.get<double>();
  double number = 0;
  return absl::SimpleAtod(value.get<std::string>(), &number) ? number : std::nan("");
}

std::string Hex(uint64_t value) { return absl::StrFormat("%016x", value); }

absl::Status Bad(const char* what, const json::exception& error) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", error.what()));
}

const std::pair<ExamineOrder::Kind, const char*> kKinds[] = {
    {ExamineOrder::Kind::kRerun, "rerun"},
    {ExamineOrder::Kind::kRepeat, "repeat"},
    {ExamineOrder::Kind::kAccept, "accept"}};

// What is compared: a place in the program, the same in both runs and on all members.
using Place = std::tuple<std::string, std::string, int64_t>;
Place PlaceOf(const Fingerprint& f) { return {f.group, f.op, f.sequence}; }

std::string Describe(const Fingerprint& f) {
  if (f.op == kResultOp) return "the step's result";
  return absl::StrCat(f.op, " ", f.sequence, " of ", f.group);
}

}  // namespace

std::string EncodeExamineReport(const ExamineReport& report) {
  // Names are long and few: each once.
  json names = json::array(), fingerprints = json::array();
  std::map<std::pair<std::string, std::string>, size_t> known;
  for (const Fingerprint& f : report.run.fingerprints) {
    const auto [name, fresh] = known.try_emplace({f.group, f.op}, known.size());
    if (fresh) names.push_back({f.group, f.op});
    fingerprints.push_back({name->second, f.sequence, f.gives ? Hex(f.hash) : ""});
  }
  return json{{"iteration", report.iteration},
              {"stage", static_cast<int>(report.stage)},
              {"common", report.common_json},
              {"rank", report.rank_json},
              {"finding", report.finding},
              {"followed", report.followed},
              {"differs", report.differs},
              {"rejected_again", report.rejected_again},
              {"initial_result", Number(report.initial_result)},
              {"result", Number(report.result)},
              {"serial", report.run.serial},
              {"complete", report.run.complete},
              {"operations", std::move(names)},
              {"fingerprints", std::move(fingerprints)}}
      .dump();
}

absl::StatusOr<ExamineReport> DecodeExamineReport(absl::string_view text) {
  try {
    const json value = json::parse(text.begin(), text.end());
    ExamineReport report;
    report.iteration = value.at("iteration");
    const int stage = value.at("stage");
    if (stage < 0 || stage > static_cast<int>(ExamineReport::Stage::kElsewhere))
      return absl::InvalidArgumentError(absl::StrCat("stage=", stage, " is unknown"));
    report.stage = static_cast<ExamineReport::Stage>(stage);
    report.common_json = value.at("common");
    report.rank_json = value.at("rank");
    report.finding = value.at("finding");
    report.followed = value.at("followed");
    report.differs = value.at("differs");
    report.rejected_again = value.at("rejected_again");
    report.initial_result = NumberFrom(value.at("initial_result"));
    report.result = NumberFrom(value.at("result"));
    report.run.serial = value.at("serial");
    report.run.complete = value.value("complete", true);
    const json& names = value.at("operations");
    for (const json& f : value.at("fingerprints")) {
      const json& name = names.at(f.at(0).get<size_t>());
      const std::string hash = f.at(2);
      Fingerprint entry{
          .sequence = f.at(1), .group = name.at(0), .op = name.at(1), .gives = !hash.empty()};
      if (entry.gives && !absl::SimpleHexAtoi(hash, &entry.hash))
        return absl::InvalidArgumentError(absl::StrCat("fingerprint '", hash, "' is no number"));
      report.run.fingerprints.push_back(std::move(entry));
    }
    return report;
  } catch (const json::exception& error) {
    return Bad("report of an examined step", error);
  }
}

std::string EncodeExamineOrder(const ExamineOrder& order) {
  json out = {{"iteration", order.iteration},
              {"reason", order.reason},
              {"common", order.common_json},
              {"ranks", order.rank_jsons}};
  for (const auto& [kind, name] : kKinds) {
    if (kind == order.kind) out["kind"] = name;
  }
  return out.dump();
}

absl::StatusOr<ExamineOrder> DecodeExamineOrder(absl::string_view text) {
  try {
    const json value = json::parse(text.begin(), text.end());
    ExamineOrder order;
    const std::string wanted = value.at("kind");
    const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                     [&](const auto& entry) { return wanted == entry.second; });
    if (found == std::end(kKinds))
      return absl::InvalidArgumentError(absl::StrCat("order of kind '", wanted, "' is unknown"));
    order.kind = found->first;
    order.iteration = value.at("iteration");
    order.reason = value.at("reason");
    order.common_json = value.at("common");
    order.rank_jsons = value.at("ranks").get<std::vector<std::string>>();
    return order;
  } catch (const json::exception& error) {
    return Bad("order about an examined step", error);
  }
}

bool OrdersRerun(absl::string_view json) {
  // Quotes of what is inside strings are escaped.
  return absl::StrContains(json, R"("kind":"rerun")");
}

Comparison CompareRuns(const std::vector<RunRecord>& first, const std::vector<RunRecord>& second) {
  Comparison result;
  // Operations into which some rank gave something else than in the other run. Within a rank, by
  // its own order.
  std::set<Place> spoiled;
  std::vector<std::optional<size_t>> first_difference(first.size());
  for (size_t rank = 0; rank < first.size(); ++rank) {
    const std::vector<Fingerprint>& a = first[rank].fingerprints;
    const std::vector<Fingerprint>& b = second[rank].fingerprints;
    const size_t common = std::min(a.size(), b.size());
    const bool complete = first[rank].complete && second[rank].complete;
    if (!complete || a.size() != b.size()) result.comparable = false;
    for (size_t i = 0; i < common; ++i) {
      if (PlaceOf(a[i]) != PlaceOf(b[i])) {
        result.comparable = false;
        break;
      }
      if (!a[i].gives || a[i].hash == b[i].hash) continue;
      spoiled.insert(PlaceOf(a[i]));
      if (!first_difference[rank].has_value()) first_difference[rank] = i;
    }
  }
  result.equal = result.comparable && spoiled.empty();
  for (size_t rank = 0; rank < first.size(); ++rank) {
    if (!first_difference[rank].has_value()) continue;
    const size_t at = *first_difference[rank];
    const std::vector<Fingerprint>& a = first[rank].fingerprints;
    const Difference difference{.rank = static_cast<int>(rank),
                                .operation = Describe(a[at]),
                                .first = a[at].hash,
                                .second = second[rank].fingerprints[at].hash};
    if (!result.earliest.has_value()) result.earliest = difference;
    const bool was_given_the_same =
        std::none_of(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(at),
                     [&](const Fingerprint& f) { return spoiled.count(PlaceOf(f)) > 0; });
    if (was_given_the_same && result.comparable) result.convicted.push_back(difference);
  }
  return result;
}

std::set<std::string> Suspects(const Comparison& comparison, const std::vector<RunRecord>& first,
                               const std::vector<RunRecord>& second) {
  std::set<std::string> suspects;
  bool begun = false;
  for (const Difference& difference : comparison.convicted) {
    const auto rank = static_cast<size_t>(difference.rank);
    const std::set<std::string> ran{first[rank].worker, second[rank].worker};
    if (!begun) {
      suspects = ran;
    } else {
      std::set<std::string> both;
      std::set_intersection(suspects.begin(), suspects.end(), ran.begin(), ran.end(),
                            std::inserter(both, both.begin()));
      suspects = std::move(both);
    }
    begun = true;
  }
  return suspects;
}

}  // namespace muster
