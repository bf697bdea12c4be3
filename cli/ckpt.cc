#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "common/base/status.h"
#include "common/ckpt/layout.h"
#include "common/ckpt/verify.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

// The folder of one checkpoint: the argument itself, or within it the one of --ckpt-step, or the
// newest that is whole.
absl::StatusOr<std::string> CheckpointFolder(const Invocation& invocation) {
  const std::string& path = invocation.arguments[0];
  std::optional<int64_t> step;
  if (invocation.Has("--ckpt-step")) {
    ASSIGN_OR_RETURN(step, invocation.GetInt("--ckpt-step", 0, 0));
  }
  if (!step && std::filesystem::exists(path + "/" + kManifestName)) return path;
  ASSIGN_OR_RETURN(const FoundCheckpoint found, FindCheckpoint(path, step));
  for (const std::string& note : found.notes) PrintError(note);
  return found.path;
}

int Inspect(const Invocation& invocation) {
  const absl::StatusOr<std::string> folder = CheckpointFolder(invocation);
  const absl::StatusOr<Manifest> manifest = folder.ok() ? CheckComplete(*folder) : folder.status();
  if (!manifest.ok()) {
    PrintError(manifest.status().message());
    return kExitUsage;
  }
  Json json = {{"path", *folder},
               {"iteration", manifest->iteration},
               {"epoch", manifest->epoch},
               {"world_size", manifest->world_size},
               {"muster_version", manifest->muster_version}};
  int64_t bytes = 0;
  for (const auto& [name, file] : manifest->content.files) bytes += file.bytes;
  json["num_files"] = manifest->content.files.size();
  json["num_bytes"] = bytes;
  json["tensors"] = Json::array();
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, tensor] : manifest->content.tensors) {
    const std::string dtype(DTypeName(tensor.dtype));
    json["tensors"].push_back({{"name", name},
                               {"dtype", dtype},
                               {"shape", tensor.global_shape},
                               {"num_slices", tensor.slices.size()}});
    rows.push_back({name, dtype, absl::StrCat("[", absl::StrJoin(tensor.global_shape, ", "), "]"),
                    absl::StrCat(tensor.slices.size())});
  }
  if (invocation.Has("--json")) {
    PrintJson(json);
    return kExitDone;
  }
  std::cout << absl::StrCat(*folder, ": iteration ", manifest->iteration, ", ",
                            manifest->content.files.size(), " files, ",
                            FormatCount(static_cast<double>(bytes)), "B\n\n")
            << FormatTable({"TENSOR", "DTYPE", "SHAPE", "SLICES"}, rows);
  return kExitDone;
}

int Verify(const Invocation& invocation) {
  const absl::StatusOr<std::string> folder = CheckpointFolder(invocation);
  const absl::StatusOr<VerifyResult> result =
      folder.ok() ? VerifyCheckpoint(*folder) : folder.status();
  if (!result.ok()) {
    PrintError(result.status().message());
    return kExitJobFailed;
  }
  if (invocation.Has("--json")) {
    PrintJson({{"path", *folder},
               {"iteration", result->manifest.iteration},
               {"num_files", result->num_files},
               {"num_bytes", result->num_bytes},
               {"problems", result->problems}});
  } else {
    for (const std::string& problem : result->problems) std::cout << problem << "\n";
    std::cout << absl::StrCat(*folder, ": ", result->num_files, " files, ",
                              FormatCount(static_cast<double>(result->num_bytes)), "B read, ",
                              result->problems.empty()
                                  ? "all is well"
                                  : absl::StrCat(result->problems.size(), " problems"),
                              "\n");
  }
  return result->problems.empty() ? kExitDone : kExitJobFailed;
}

std::vector<OptionSpec> Options() {
  return {{.name = "--ckpt-step", .value = "N", .help = "of this iteration (default: the newest)"},
          JsonOption()};
}

}  // namespace

Command CkptInspectCommand() {
  return {.name = "ckpt inspect",
          .arguments = "DIR",
          .help = "what is in a checkpoint",
          .details =
              "Prints iteration, files and tensors (name, type, shape, number of slices) of a "
              "checkpoint. DIR is the folder of one iteration or of checkpoints; of these the "
              "newest that is whole is taken.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = Options(),
          .examples = {{"muster ckpt inspect runs/a/ckpt", "the newest one"},
                       {"muster ckpt inspect runs/a/ckpt --ckpt-step 1000 --json",
                        "one of them, for a script"}},
          .run = Inspect};
}

Command CkptVerifyCommand() {
  return {.name = "ckpt verify",
          .arguments = "DIR",
          .help = "check every byte of a checkpoint; exit code 1 when one is wrong",
          .details =
              "Reads every byte of a checkpoint and compares it with the checksums in its "
              "manifest. Any byte that is not what it was is found, with the file it is in. DIR as "
              "of muster-ckpt-inspect(1).",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = Options(),
          .examples = {{"muster ckpt verify runs/a/ckpt", "before a long run goes on from it"}},
          .failure =
              "A byte is wrong, a file is missing, or there is no checkpoint; what is wrong is "
              "printed.",
          .run = Verify};
}

}  // namespace muster
