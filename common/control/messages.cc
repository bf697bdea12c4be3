#include "common/control/messages.h"

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

// Every message lists its fields once, in Visit(); the Writer and the Reader below walk that list,
// so that the two directions cannot drift apart. JSON has no NaN or infinity: such doubles travel
// as the strings "nan", "inf" and "-inf". Finite ones are written with the digits that give the
// same double back (at most 17).

namespace muster {
namespace {

// Field order is kept in the text, "type" first: lines stay readable in a log.
using Json = nlohmann::ordered_json;

// ---- names of the enums
template <typename E>
struct EnumName {
  E value;
  const char* name;
};
constexpr EnumName<Directive::Kind> kDirectiveKinds[] = {
    {Directive::Kind::kCheckpoint, "checkpoint"},
    {Directive::Kind::kEvaluate, "evaluate"},
    {Directive::Kind::kStop, "stop"},
    {Directive::Kind::kCheckpointAndStop, "checkpoint_and_stop"},
};
constexpr EnumName<StoreRequestMessage::Op> kStoreOps[] = {
    {StoreRequestMessage::Op::kSet, "set"},
    {StoreRequestMessage::Op::kWaitPrefix, "wait_prefix"},
};
constexpr auto& NamesOf(Directive::Kind) { return kDirectiveKinds; }
constexpr auto& NamesOf(StoreRequestMessage::Op) { return kStoreOps; }

// ---- the fields of each message
#define MUSTER_FIELD(member) v(#member, m.member)

template <class V, class M>
void VisitDirective(V& v, M& m) {
  MUSTER_FIELD(number);
  MUSTER_FIELD(kind);
  MUSTER_FIELD(reason);
}

template <class T>
struct Tag {};

template <class V, class M>
void Visit(Tag<AssignMessage>, V& v, M& m) {
  MUSTER_FIELD(job_id);
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(rank);
  MUSTER_FIELD(world_size);
  MUSTER_FIELD(spec_json);
  MUSTER_FIELD(host_address);
  MUSTER_FIELD(device);
  MUSTER_FIELD(num_threads);
  MUSTER_FIELD(directives_through);
  MUSTER_FIELD(plugin_dirs);
}
template <class V, class M>
void Visit(Tag<UniqueIdMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(id);
}
template <class V, class M>
void Visit(Tag<DirectiveMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(directive);
}
template <class V, class M>
void Visit(Tag<AbortMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(reason);
}
template <class V, class M>
void Visit(Tag<ShutdownMessage>, V& v, M& m) {
  MUSTER_FIELD(reason);
}
template <class V, class M>
void Visit(Tag<StoreReplyMessage>, V& v, M& m) {
  MUSTER_FIELD(request);
  MUSTER_FIELD(ok);
  MUSTER_FIELD(error);
  MUSTER_FIELD(error_code);
  MUSTER_FIELD(entries);
}
template <class V, class M>
void Visit(Tag<HelloMessage>, V& v, M& m) {
  MUSTER_FIELD(pid);
  MUSTER_FIELD(version);
}
template <class V, class M>
void Visit(Tag<PhaseMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(phase);
  MUSTER_FIELD(detail);
}
template <class V, class M>
void Visit(Tag<PublishUniqueIdMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(id);
}
template <class V, class M>
void Visit(Tag<StoreRequestMessage>, V& v, M& m) {
  MUSTER_FIELD(request);
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(op);
  MUSTER_FIELD(key);
  MUSTER_FIELD(value);
  MUSTER_FIELD(count);
  MUSTER_FIELD(limit_ms);
}
template <class V, class M>
void Visit(Tag<StepMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(consumed_samples);
  MUSTER_FIELD(lm_loss);
  MUSTER_FIELD(loss_text);
  MUSTER_FIELD(grad_norm);
  MUSTER_FIELD(learning_rate);
  MUSTER_FIELD(loss_scale);
  MUSTER_FIELD(elapsed_ms);
  MUSTER_FIELD(tokens_per_s);
  MUSTER_FIELD(tflops_per_device);
  MUSTER_FIELD(skipped);
  MUSTER_FIELD(num_floating_point_operations_so_far);
  MUSTER_FIELD(memory_bytes);
  MUSTER_FIELD(applied_directive);
  MUSTER_FIELD(global_batch_size);
  MUSTER_FIELD(timers_ms);
}
template <class V, class M>
void Visit(Tag<EvaluationMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(split);
  MUSTER_FIELD(lm_loss);
  MUSTER_FIELD(ppl);
  MUSTER_FIELD(final);
}
template <class V, class M>
void Visit(Tag<CheckpointMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(path);
  MUSTER_FIELD(ok);
  MUSTER_FIELD(error);
  MUSTER_FIELD(elapsed_ms);
}
template <class V, class M>
void Visit(Tag<EventMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(kind);
  MUSTER_FIELD(text);
}
template <class V, class M>
void Visit(Tag<DoneMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(exit_code);
  MUSTER_FIELD(reason);
}
template <class V, class M>
void Visit(Tag<FailedMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(reason);
  MUSTER_FIELD(collective);
}
template <class V, class M>
void Visit(Tag<ProgressMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(iteration);
}
#undef MUSTER_FIELD

// "type" of each message, in the order of the variant's alternatives.
constexpr const char* kToTrainerTypes[] = {"assign", "unique_id", "directive",
                                           "abort",  "shutdown",  "store_reply"};
static_assert(std::size(kToTrainerTypes) == std::variant_size_v<AgentToTrainer>);
constexpr const char* kToAgentTypes[] = {"hello",         "phase",   "publish_unique_id",
                                         "store_request", "step",    "evaluation",
                                         "checkpoint",    "event",   "done",
                                         "failed",        "progress"};
static_assert(std::size(kToAgentTypes) == std::variant_size_v<TrainerToAgent>);

// ---- writing
class Writer {
 public:
  explicit Writer(Json& json) : json_(json) {}

  template <class T>
  void operator()(const char* name, const T& value) {
    if constexpr (std::is_same_v<T, std::optional<double>>) {
      if (value.has_value()) json_[name] = ToJson(*value);  // absent: not written
    } else {
      json_[name] = ToJson(value);
    }
  }

 private:
  template <class T>
  static Json ToJson(const T& value) {
    return value;
  }
  static Json ToJson(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
  }
  static Json ToJson(Directive::Kind kind) { return EnumToJson(kind); }
  static Json ToJson(StoreRequestMessage::Op op) { return EnumToJson(op); }
  template <class E>
  static Json EnumToJson(E value) {
    for (const auto& entry : NamesOf(value)) {
      if (entry.value == value) return entry.name;
    }
    MUSTER_CHECK_MSG(false, "enum value without a name");
  }
  static Json ToJson(const Directive& directive) {
    Json json = Json::object();
    Writer writer(json);
    VisitDirective(writer, directive);
    return json;
  }
  static Json ToJson(const std::vector<std::pair<std::string, std::string>>& entries) {
    Json json = Json::array();
    for (const auto& [key, value] : entries) json.push_back(Json::array({key, value}));
    return json;
  }
  static Json ToJson(const std::map<std::string, double>& values) {
    Json json = Json::object();
    for (const auto& [key, value] : values) json[key] = ToJson(value);
    return json;
  }

  Json& json_;
};

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

// ---- reading
class Reader {
 public:
  Reader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  const absl::Status& status() const { return status_; }

  template <class T>
  void operator()(const char* name, T& value) {
    if (!status_.ok()) return;
    const std::string where = absl::StrCat(path_, ".", name);
    auto it = json_.find(name);
    if constexpr (std::is_same_v<T, std::optional<double>>) {
      value.reset();
      if (it == json_.end()) return;
      double number = 0;
      Read(where, *it, number);
      value = number;
    } else {
      if (it == json_.end()) {
        Fail(where, "is missing");
        return;
      }
      Read(where, *it, value);
    }
  }

 private:
  void Fail(const std::string& where, const std::string& rule) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(where, " ", rule));
  }
  void FailType(const std::string& where, const char* wanted, const Json& json) {
    Fail(where, absl::StrCat("must be ", wanted, ", not ", Excerpt(json)));
  }
  // A value as an error shows it: never more than a few words of a long line.
  static std::string Excerpt(const Json& json) {
    if (json.is_structured()) return json.is_array() ? "an array" : "an object";
    std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 40) + "...";
    return text;
  }

  void Read(const std::string& where, const Json& json, std::string& value) {
    if (!json.is_string()) return FailType(where, "a string", json);
    value = json.get_ref<const std::string&>();
  }
  void Read(const std::string& where, const Json& json, bool& value) {
    if (!json.is_boolean()) return FailType(where, "true or false", json);
    value = json.get<bool>();
  }
  void Read(const std::string& where, const Json& json, int64_t& value) {
    if (!json.is_number_integer()) return FailType(where, "a whole number", json);
    if (json.is_number_unsigned() &&
        json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return FailType(where, "a whole number of 64 bits", json);
    }
    value = json.get<int64_t>();
  }
  void Read(const std::string& where, const Json& json, int& value) {
    int64_t wide = 0;
    Read(where, json, wide);
    if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
      return FailType(where, "a whole number of 32 bits", json);
    }
    value = static_cast<int>(wide);
  }
  void Read(const std::string& where, const Json& json, double& value) {
    if (json.is_number()) {
      value = json.get<double>();
      return;
    }
    if (json == "nan") {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (json == "inf") {
      value = std::numeric_limits<double>::infinity();
    } else if (json == "-inf") {
      value = -std::numeric_limits<double>::infinity();
    } else {
      FailType(where, "a number, \"nan\", \"inf\" or \"-inf\"", json);
    }
  }
  void Read(const std::string& where, const Json& json, Directive::Kind& value) {
    ReadEnum(where, json, value);
  }
  void Read(const std::string& where, const Json& json, StoreRequestMessage::Op& value) {
    ReadEnum(where, json, value);
  }
  template <class E>
  void ReadEnum(const std::string& where, const Json& json, E& value) {
    std::vector<const char*> names;
    for (const auto& entry : NamesOf(value)) {
      if (json == entry.name) {
        value = entry.value;
        return;
      }
      names.push_back(entry.name);
    }
    FailType(where, absl::StrCat("one of ", absl::StrJoin(names, ", ")).c_str(), json);
  }
  void Read(const std::string& where, const Json& json, Directive& value) {
    if (!json.is_object()) return FailType(where, "an object", json);
    Reader reader(json, where);
    VisitDirective(reader, value);
    status_ = reader.status();
    if (status_.ok() && value.number < 1) Fail(where + ".number", "must be at least 1");
  }
  void Read(const std::string& where, const Json& json, std::vector<std::string>& value) {
    if (!json.is_array()) return FailType(where, "an array of strings", json);
    value.clear();
    for (const Json& item : json) {
      Read(absl::StrCat(where, "[", value.size(), "]"), item, value.emplace_back());
    }
  }
  void Read(const std::string& where, const Json& json,
            std::vector<std::pair<std::string, std::string>>& value) {
    if (!json.is_array()) return FailType(where, "an array of [key, value]", json);
    value.clear();
    for (const Json& item : json) {
      const std::string element = absl::StrCat(where, "[", value.size(), "]");
      if (!item.is_array() || item.size() != 2) return FailType(element, "[key, value]", item);
      auto& [key, text] = value.emplace_back();
      Read(element + "[0]", item[0], key);
      Read(element + "[1]", item[1], text);
    }
  }
  void Read(const std::string& where, const Json& json, std::map<std::string, double>& value) {
    if (!json.is_object()) return FailType(where, "an object of numbers", json);
    value.clear();
    for (const auto& [key, item] : json.items()) {
      Read(absl::StrCat(where, ".", key), item, value[key]);
    }
  }

  const Json& json_;
  const std::string path_;
  absl::Status status_;
};

// Rules beyond the types: only what a receiver would index or divide by.
absl::Status CheckValues(const AssignMessage& m) {
  if (m.world_size < 1) return absl::InvalidArgumentError("assign.world_size must be at least 1");
  if (m.rank < 0 || m.rank >= m.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("assign.rank=", m.rank, " must be in 0..",
                                                   m.world_size - 1, " (world_size - 1)"));
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
