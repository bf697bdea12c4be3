#include "common/control/messages.h"

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/control/message_fields.h"
#include "common/control/message_json.h"

namespace muster {
namespace {

using control_fields::Json;
using control_fields::Reader;
using control_fields::Tag;
using control_fields::Visit;
using control_fields::Writer;

// "type" of each message, in the order of the variant's alternatives.
constexpr const char* kToTrainerTypes[] = {"assign",   "unique_id",   "directive", "abort",
                                           "shutdown", "store_reply", "probe"};
static_assert(std::size(kToTrainerTypes) == std::variant_size_v<AgentToTrainer>);
constexpr const char* kToAgentTypes[] = {
    "hello",       "phase",      "publish_unique_id", "store_request",
    "step",        "evaluation", "checkpoint",        "event",
    "done",        "failed",     "progress",          "trace_piece",
    "probe_reply", "restored",   "rank_times",        "examine"};
static_assert(std::size(kToAgentTypes) == std::variant_size_v<TrainerToAgent>);

template <size_t N, class Variant>
std::string EncodeVariant(const char* const (&types)[N], const Variant& message) {
  Json json = Json::object();
  json["type"] = types[message.index()];
  std::visit(
      [&json](const auto& m) {
        Writer writer(json);
        Visit(Tag<std::decay_t<decltype(m)>>{}, writer, m);
      },
      message);
  // Text from outside (a log line, an error of a library) may hold bytes that are not UTF-8: they
  // become U+FFFD instead of costing the whole message.
  std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  line.push_back('\n');
  return line;
}

// Rules beyond the types: only what a receiver would index or divide by.
absl::Status CheckValues(const AssignMessage& m) {
  if (m.world_size < 1) return absl::InvalidArgumentError("assign.world_size must be at least 1");
  if (m.num_helpers < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("assign.num_helpers=", m.num_helpers, " must be at least 0"));
  }
  const int members = m.world_size + m.num_helpers;
  if (m.rank < -1 || m.rank >= members) {
    return absl::InvalidArgumentError(absl::StrCat("assign.rank=", m.rank, " must be in 0..",
                                                   members - 1,
                                                   " (world_size + num_helpers - 1), or -1"));
  }
  if (m.buddy < -1 || m.buddy >= m.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("assign.buddy=", m.buddy, " must be in 0..",
                                                   m.world_size - 1, " (world_size - 1), or -1"));
  }
  return absl::OkStatus();
}
template <class M>
absl::Status CheckValues(const M&) {
  return absl::OkStatus();
}

template <class Variant, size_t I = 0, size_t N>
absl::StatusOr<Variant> DecodeAs(const char* const (&types)[N], const std::string& type,
                                 const Json& json) {
  if constexpr (I == N) {
    return absl::InvalidArgumentError(
        absl::StrCat("message.type=\"", type.substr(0, 40),
                     "\" is unknown; known: ", absl::StrJoin(types, ", ")));
  } else {
    if (type != types[I]) return DecodeAs<Variant, I + 1>(types, type, json);
    std::variant_alternative_t<I, Variant> message;
    Reader reader(json, type);
    Visit(Tag<decltype(message)>{}, reader, message);
    RETURN_IF_ERROR(reader.status());
    RETURN_IF_ERROR(CheckValues(message));
    return Variant(std::move(message));
  }
}

template <class Variant, size_t N>
absl::StatusOr<Variant> DecodeVariant(const char* const (&types)[N], absl::string_view line) {
  if (line.size() > kMaxControlLine) {
    return absl::InvalidArgumentError(absl::StrCat("message of ", line.size(),
                                                   " bytes is longer than the limit of ",
                                                   kMaxControlLine, " bytes"));
  }
  Json json = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return absl::InvalidArgumentError(
        absl::StrCat("message of ", line.size(), " bytes is not valid JSON (truncated?)"));
  }
  if (!json.is_object()) return absl::InvalidArgumentError("message must be a JSON object");
  auto type = json.find("type");
  if (type == json.end() || !type->is_string()) {
    return absl::InvalidArgumentError("message.type is missing or not a string");
  }
  return DecodeAs<Variant>(types, type->get_ref<const std::string&>(), json);
}

}  // namespace

std::string Encode(const AgentToTrainer& message) {
  return EncodeVariant(kToTrainerTypes, message);
}
std::string Encode(const TrainerToAgent& message) { return EncodeVariant(kToAgentTypes, message); }
absl::StatusOr<AgentToTrainer> DecodeAgentToTrainer(absl::string_view line) {
  return DecodeVariant<AgentToTrainer>(kToTrainerTypes, line);
}
absl::StatusOr<TrainerToAgent> DecodeTrainerToAgent(absl::string_view line) {
  return DecodeVariant<TrainerToAgent>(kToAgentTypes, line);
}

}  // namespace muster
