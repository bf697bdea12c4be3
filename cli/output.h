// What commands print: a table for people or JSON for programs, from the same data. JSON keeps
// every digit of a double.
#pragma once

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "muster/v1/job.pb.h"
#include "muster/v1/membership.pb.h"
#include "nlohmann/json_fwd.hpp"

namespace muster {

// Left-aligned columns under their titles.
std::string FormatTable(const std::vector<std::string>& titles,
                        const std::vector<std::vector<std::string>>& rows);

// Every line of `text` with at most `columns` characters.
std::string CutLines(absl::string_view text, int columns);

// "1.2 s", "3 min 20 s", "2 h 5 min"
std::string FormatSeconds(double seconds);
// "12.3k", "4.5M", "6.7G"
std::string FormatCount(double value);
std::string FormatTime(const google::protobuf::Timestamp& time);
// "RUNNING"
std::string StateName(v1::JobState state);
// Of the MoE layers, those that the step has, by Megatron's names.
std::vector<std::pair<const char*, double>> SideLosses(const v1::StepReport& step);

// The stable field names of --json.
nlohmann::ordered_json ToJson(const v1::MetricsRecord& record);
nlohmann::ordered_json ToJson(const v1::JobStatus& job);
nlohmann::ordered_json ToJson(const v1::WorkerStatus& worker);
nlohmann::ordered_json ToJson(const v1::Event& event);
nlohmann::ordered_json ToJson(const v1::LogLine& line);

// One line, or indented for a terminal's reader.
void PrintJson(const nlohmann::ordered_json& json);
void PrintJsonLine(const nlohmann::ordered_json& json);

// "muster: text" on stderr.
void PrintError(absl::string_view text);

}  // namespace muster
