#include "common/ckpt/manifest.h"

#include <cstring>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/ckpt/crc32c.h"

namespace muster {
namespace {

using nlohmann::json;

// The last line of the file. The eight zeros stand for the checksum while it is computed.
constexpr absl::string_view kChecksumPrefix = ",\n\"manifest_crc32c\": \"";
constexpr absl::string_view kChecksumSuffix = "\"}\n";
constexpr size_t kChecksumDigits = 8;
constexpr size_t kTailBytes = kChecksumPrefix.size() + kChecksumDigits + kChecksumSuffix.size();

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("(", absl::StrJoin(shape, ", "), ")");
}

json SliceToJson(const ManifestSlice& slice) {
  json object = {{"offset", slice.box.offset},
                 {"shape", slice.box.shape},
                 {"file", slice.file},
                 {"bytes", {slice.begin, slice.end}},
                 {"crc32c", slice.crc32c}};
  if (slice.box.flat_begin != 0 || slice.box.flat_end != NumElements(slice.box.shape)) {
    object["range"] = {slice.box.flat_begin, slice.box.flat_end};
  }
  return object;
}

// Throws json::exception for what is missing or of another type.
ManifestSlice SliceFromJson(const json& object) {
  ManifestSlice slice;
  slice.box = WholeBox(object.at("offset"), object.at("shape"));
  if (object.contains("range")) {
    slice.box.flat_begin = object["range"].at(0);
    slice.box.flat_end = object["range"].at(1);
  }
  slice.file = object.at("file");
  slice.begin = object.at("bytes").at(0);
  slice.end = object.at("bytes").at(1);
  slice.crc32c = object.at("crc32c");
  return slice;
}

json PartToObject(const ManifestPart& part) {
  json tensors = json::object();
  for (const auto& [name, tensor] : part.tensors) {
    json slices = json::array();
    for (const ManifestSlice& slice : tensor.slices) slices.push_back(SliceToJson(slice));
    tensors[name] = {{"dtype", DTypeName(tensor.dtype)},
                     {"global_shape", tensor.global_shape},
                     {"slices", std::move(slices)}};
  }
  json files = json::object();
  for (const auto& [name, file] : part.files) {
    files[name] = {{"bytes", file.bytes},
                   {"header_bytes", file.header_bytes},
                   {"header_crc32c", file.header_crc32c}};
  }
  return {{"tensors", std::move(tensors)}, {"files", std::move(files)}};
}

absl::StatusOr<ManifestPart> PartFromObject(const json& object) {
  ManifestPart part;
  try {
    for (const auto& [name, entry] : object.at("tensors").items()) {
      ManifestTensor& tensor = part.tensors[name];
      const std::string dtype = entry.at("dtype");
      const auto known = DTypeFromName(dtype);
      if (!known.has_value()) {
        return absl::DataLossError(absl::StrCat("tensor \"", name, "\": unknown dtype ", dtype));
      }
      tensor.dtype = *known;
      tensor.global_shape = entry.at("global_shape").get<std::vector<int64_t>>();
      for (const json& slice : entry.at("slices")) tensor.slices.push_back(SliceFromJson(slice));
    }
    for (const auto& [name, entry] : object.at("files").items()) {
      part.files[name] = {.bytes = entry.at("bytes"),
                          .header_bytes = entry.at("header_bytes"),
                          .header_crc32c = entry.at("header_crc32c")};
    }
  } catch (const json::exception& error) {
    return absl::DataLossError(error.what());
  }
  return part;
}

absl::Status CheckSlice(const ManifestTensor& tensor, const ManifestSlice& slice,
                        const std::map<std::string, ManifestFile>& files) {
  const size_t dims = tensor.global_shape.size();
  if (slice.box.offset.size() != dims || slice.box.shape.size() != dims) {
    return absl::InvalidArgumentError("a slice has another number of dims than the tensor");
  }
  for (size_t d = 0; d < dims; ++d) {
    const int64_t begin = slice.box.offset[d];
    const int64_t extent = slice.box.shape[d];
    if (begin < 0 || extent < 0 || begin > tensor.global_shape[d] - extent) {
      return absl::InvalidArgumentError(
          absl::StrCat("slice ", ShapeText(slice.box.shape), " at ", ShapeText(slice.box.offset),
                       " lies outside the tensor ", ShapeText(tensor.global_shape)));
    }
  }
  const int64_t elements = slice.box.flat_end - slice.box.flat_begin;
  if (slice.box.flat_begin < 0 || elements < 0 ||
      slice.box.flat_end > NumElements(slice.box.shape)) {
    return absl::InvalidArgumentError("a slice's range lies outside its box");
  }
  const auto file = files.find(slice.file);
  if (file == files.end()) {
    return absl::InvalidArgumentError(absl::StrCat("its file ", slice.file, " is not listed"));
  }
  if (slice.begin < file->second.header_bytes || slice.end > file->second.bytes ||
      slice.end - slice.begin != elements * DTypeSize(tensor.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("its bytes ", slice.begin, " to ", slice.end,
                                                   " of ", slice.file, " do not fit"));
  }
  return absl::OkStatus();
}

}  // namespace

SliceBox WholeBox(std::vector<int64_t> offset, std::vector<int64_t> shape) {
  SliceBox box{.offset = std::move(offset), .shape = std::move(shape)};
  box.flat_end = NumElements(box.shape);
  return box;
}

std::string PartToJson(const ManifestPart& part) { return PartToObject(part).dump(); }

absl::StatusOr<ManifestPart> PartFromJson(absl::string_view text) {
  const json object = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::DataLossError("not a JSON object");
  return PartFromObject(object);
}

absl::Status MergePart(const ManifestPart& part, ManifestPart& whole) {
  for (const auto& [name, tensor] : part.tensors) {
    auto [it, is_new] = whole.tensors.try_emplace(name, tensor);
    if (is_new) continue;
    if (it->second.dtype != tensor.dtype || it->second.global_shape != tensor.global_shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("ranks disagree on tensor \"", name,
                       "\": ", ShapeText(it->second.global_shape), " ", DTypeName(it->second.dtype),
                       " and ", ShapeText(tensor.global_shape), " ", DTypeName(tensor.dtype)));
    }
    it->second.slices.insert(it->second.slices.end(), tensor.slices.begin(), tensor.slices.end());
  }
  for (const auto& [name, file] : part.files) {
    if (!whole.files.try_emplace(name, file).second) {
      return absl::InvalidArgumentError(absl::StrCat("two ranks wrote ", name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckManifest(const Manifest& manifest) {
  for (const auto& [name, tensor] : manifest.content.tensors) {
    int64_t written = 0;
    for (const ManifestSlice& slice : tensor.slices) {
      if (absl::Status status = CheckSlice(tensor, slice, manifest.content.files); !status.ok()) {
        return Annotate(status, absl::StrCat("tensor \"", name, "\""));
      }
      written += slice.box.flat_end - slice.box.flat_begin;
    }
    if (written != NumElements(tensor.global_shape)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", name, "\" ", ShapeText(tensor.global_shape), " has ",
                       NumElements(tensor.global_shape), " elements, but its slices hold ", written,
                       ": every slice must be written by exactly one rank"));
    }
  }
  return absl::OkStatus();
}

std::string ManifestToJson(const Manifest& manifest) {
  json object = PartToObject(manifest.content);
  object["format"] = "muster-checkpoint";
  object["format_version"] = manifest.format_version;
  object["muster_version"] = manifest.muster_version;
  object["iteration"] = manifest.iteration;
  object["epoch"] = manifest.epoch;
  object["world_size"] = manifest.world_size;
  std::string text = object.dump(1);
  text.resize(text.size() - absl::string_view("\n}").size());  // makes room for the checksum
  absl::StrAppend(&text, kChecksumPrefix, std::string(kChecksumDigits, '0'), kChecksumSuffix);
  const std::string digits = absl::StrFormat("%08x", Crc32c(text));
  text.replace(text.size() - kChecksumSuffix.size() - kChecksumDigits, kChecksumDigits, digits);
  return text;
}

absl::StatusOr<Manifest> ManifestFromJson(absl::string_view text) {
  const absl::string_view tail =
      text.size() < kTailBytes ? absl::string_view() : text.substr(text.size() - kTailBytes);
  if (tail.substr(0, kChecksumPrefix.size()) != kChecksumPrefix ||
      tail.substr(kTailBytes - kChecksumSuffix.size()) != kChecksumSuffix) {
    return absl::DataLossError("truncated or damaged: it does not end with its checksum");
  }
  std::string zeroed(text);
  const size_t digits_at = text.size() - kChecksumSuffix.size() - kChecksumDigits;
  zeroed.replace(digits_at, kChecksumDigits, std::string(kChecksumDigits, '0'));
  const std::string expected = absl::StrFormat("%08x", Crc32c(zeroed));
  if (text.substr(digits_at, kChecksumDigits) != expected) {
    return absl::DataLossError(absl::StrCat("damaged: its checksum is ", expected, ", it says ",
                                            text.substr(digits_at, kChecksumDigits)));
  }
  const json object = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::DataLossError("not a JSON object");
  Manifest manifest;
  try {
    manifest.format_version = object.at("format_version");
    if (object.at("format") != "muster-checkpoint" || manifest.format_version != kManifestVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          "format ", object.at("format").get<std::string>(), " version ", manifest.format_version,
          "; this build reads muster-checkpoint version ", kManifestVersion));
    }
    manifest.muster_version = object.at("muster_version");
    manifest.iteration = object.at("iteration");
    manifest.epoch = object.at("epoch");
    manifest.world_size = object.at("world_size");
  } catch (const json::exception& error) {
    return absl::DataLossError(error.what());
  }
  ASSIGN_OR_RETURN(manifest.content, PartFromObject(object));
  return manifest;
}

}  // namespace muster
