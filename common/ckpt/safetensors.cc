#include "common/ckpt/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/ckpt/crc32c.h"

namespace muster {
namespace {

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr absl::string_view kMetadataKey = "__metadata__";

struct DTypeRow {
  DType type;
  absl::string_view name;
  int64_t size;
};
constexpr DTypeRow kDTypes[] = {
    {DType::kBool, "BOOL", 1},      {DType::kU8, "U8", 1},          {DType::kI8, "I8", 1},
    {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kF8E5M2, "F8_E5M2", 1}, {DType::kI16, "I16", 2},
    {DType::kU16, "U16", 2},        {DType::kF16, "F16", 2},        {DType::kBF16, "BF16", 2},
    {DType::kI32, "I32", 4},        {DType::kU32, "U32", 4},        {DType::kF32, "F32", 4},
    {DType::kI64, "I64", 8},        {DType::kU64, "U64", 8},        {DType::kF64, "F64", 8},
};

// Element count times size; nullopt on overflow or a negative extent.
std::optional<int64_t> CheckedBytes(const std::vector<int64_t>& shape, DType dtype) {
  int64_t bytes = DTypeSize(dtype);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace

absl::string_view DTypeName(DType type) { return kDTypes[static_cast<size_t>(type)].name; }

int64_t DTypeSize(DType type) { return kDTypes[static_cast<size_t>(type)].size; }

std::optional<DType> DTypeFromName(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

int64_t NumElements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

int64_t NumBytes(const TensorInfo& info) { return NumElements(info.shape) * DTypeSize(info.dtype); }

absl::StatusOr<SafetensorsLayout> PlanSafetensors(
    const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata) {
  SafetensorsLayout layout;
  std::set<std::string> names;
  for (const TensorInfo& info : tensors) {
    if (info.name == kMetadataKey || !names.insert(info.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor name \"", info.name, "\" is used twice or reserved"));
    }
    if (!CheckedBytes(info.shape, info.dtype).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", info.name, "\" has a negative or too large shape"));
    }
    layout.places.push_back({.info = info});
  }
  std::stable_sort(layout.places.begin(), layout.places.end(),
                   [](const TensorPlace& a, const TensorPlace& b) {
                     return DTypeSize(a.info.dtype) > DTypeSize(b.info.dtype);
                   });
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json[std::string(kMetadataKey)] = metadata;
  int64_t offset = 0;
  for (TensorPlace& place : layout.places) {
    place.begin = offset;
    place.end = offset + NumBytes(place.info);
    offset = place.end;
    json[place.info.name] = {{"dtype", DTypeName(place.info.dtype)},
                             {"shape", place.info.shape},
                             {"data_offsets", {place.begin, place.end}}};
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception& error) {  // a name that is not UTF-8
    return absl::InvalidArgumentError(absl::StrCat("safetensors header: ", error.what()));
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t size = text.size();
  layout.header.assign(reinterpret_cast<const char*>(&size), sizeof(size));
  layout.header += text;
  const int64_t data_begin = static_cast<int64_t>(layout.header.size());
  for (TensorPlace& place : layout.places) {
    place.begin += data_begin;
    place.end += data_begin;
  }
  layout.file_bytes = data_begin + offset;
  return layout;
}

absl::Status WriteSafetensors(
    FileOps& files, const std::string& path, SafetensorsLayout& layout,
    const std::function<absl::StatusOr<absl::string_view>(size_t)>& bytes_of) {
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.Create(path));
  RETURN_IF_ERROR(file->Append(layout.header));
  for (size_t i = 0; i < layout.places.size(); ++i) {
    TensorPlace& place = layout.places[i];
    ASSIGN_OR_RETURN(const absl::string_view bytes, bytes_of(i));
    if (static_cast<int64_t>(bytes.size()) != place.end - place.begin) {
      return absl::InternalError(absl::StrCat("tensor \"", place.info.name, "\" gave ",
                                              bytes.size(), " bytes, planned were ",
                                              place.end - place.begin));
    }
    place.crc32c = Crc32c(bytes);
    RETURN_IF_ERROR(file->Append(bytes));
  }
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile result;
  ASSIGN_OR_RETURN(result.file_, MappedFile::Open(path));
  if (absl::Status status = result.Parse(); !status.ok()) return Annotate(status, path);
  return result;
}

absl::Status SafetensorsFile::Parse() {
  const absl::string_view bytes = file_->bytes();
  const auto damaged = [](const auto&... what) {
    return absl::DataLossError(absl::StrCat(what...));
  };
  uint64_t header_size = 0;
  if (bytes.size() < sizeof(header_size)) return damaged("truncated: ", bytes.size(), " bytes");
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  if (header_size > static_cast<uint64_t>(kMaxHeaderBytes) || header_size > bytes.size() - 8) {
    return damaged("its header claims ", header_size, " bytes; the file has ", bytes.size());
  }
  header_bytes_ = 8 + static_cast<int64_t>(header_size);
  const absl::string_view text = bytes.substr(8, header_size);
  const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr,
                                                    /*allow_exceptions=*/false);
  if (!json.is_object()) return damaged("its header is not a JSON object");
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadataKey) {
      if (!entry.is_object()) return damaged("__metadata__ is not an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return damaged("__metadata__.", key, " is not a string");
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    const auto is_integers = [](const nlohmann::json& list) {
      return list.is_array() && std::all_of(list.begin(), list.end(), [](const auto& v) {
               return v.is_number_integer() &&
                      (!v.is_number_unsigned() ||
                       v.template get<uint64_t>() <=
                           static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
             });
    };
    if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
        !entry.contains("shape") || !is_integers(entry["shape"]) ||
        !entry.contains("data_offsets") || !is_integers(entry["data_offsets"]) ||
        entry["data_offsets"].size() != 2) {
      return damaged("tensor \"", name, "\" lacks dtype, shape or data_offsets");
    }
    const auto dtype = DTypeFromName(entry["dtype"].get_ref<const std::string&>());
    if (!dtype.has_value()) {
      return damaged("tensor \"", name, "\" has unknown dtype ",
                     entry["dtype"].get_ref<const std::string&>());
    }
    TensorPlace place{.info = {.name = name,
                               .dtype = *dtype,
                               .shape = entry["shape"].get<std::vector<int64_t>>()},
                      .begin = entry["data_offsets"][0].get<int64_t>(),
                      .end = entry["data_offsets"][1].get<int64_t>()};
    const std::optional<int64_t> expected = CheckedBytes(place.info.shape, *dtype);
    const int64_t data_bytes = static_cast<int64_t>(bytes.size()) - header_bytes_;
    if (place.begin < 0 || place.end < place.begin || place.end > data_bytes) {
      return damaged("tensor \"", name, "\" lies outside the file: truncated?");
    }
    if (!expected.has_value() || *expected != place.end - place.begin) {
      return damaged("tensor \"", name, "\" has ", place.end - place.begin,
                     " bytes, which its shape and dtype do not give");
    }
    place.begin += header_bytes_;
    place.end += header_bytes_;
    places_.push_back(std::move(place));
  }
  std::sort(places_.begin(), places_.end(), [](const TensorPlace& a, const TensorPlace& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t position = header_bytes_;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].begin != position) {
      return damaged("tensor \"", places_[i].info.name, "\" begins at byte ", places_[i].begin,
                     "; ", position, " is due (a gap or an overlap)");
    }
    position = places_[i].end;
    index_[places_[i].info.name] = i;
  }
  if (position != static_cast<int64_t>(bytes.size())) {
    return damaged("the tensors end at byte ", position, ", the file has ", bytes.size());
  }
  return absl::OkStatus();
}

const TensorPlace* SafetensorsFile::Find(absl::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &places_[it->second];
}

absl::string_view SafetensorsFile::BytesOf(const TensorPlace& place) const {
  return file_->bytes().substr(static_cast<size_t>(place.begin),
                               static_cast<size_t>(place.end - place.begin));
}

}  // namespace muster
