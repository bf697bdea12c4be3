#include "worker/checkpoint/checkpoint.h"

#include <set>

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/ckpt/commit.h"
#include "common/ckpt/layout.h"
#include "common/ckpt/verify.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/shard_writer.h"

namespace muster {
namespace {

absl::StatusOr<std::string> WriteMyShard(FileOps& files, const std::string& aside, int rank,
                                         const CheckpointState& state) {
  ASSIGN_OR_RETURN(const ManifestPart part, WriteShard(files, aside, rank, state));
  return PartToJson(part);
}

// Rank 0, once every shard is written. The answer that is broadcast: bytes, path, notes by line.
absl::StatusOr<std::string> Commit(FileOps& files, const SaveOptions& options, int64_t iteration,
                                   const std::vector<std::string>& parts) {
  Manifest manifest{.muster_version = MUSTER_VERSION,
                    .iteration = iteration,
                    .epoch = options.epoch,
                    .world_size = static_cast<int64_t>(parts.size())};
  for (const std::string& text : parts) {
    ASSIGN_OR_RETURN(const ManifestPart part, PartFromJson(text));
    RETURN_IF_ERROR(MergePart(part, manifest.content));
  }
  ASSIGN_OR_RETURN(const CommittedCheckpoint committed,
                   CommitCheckpoint(files, options.root, manifest,
                                    {.save_retain_interval = options.save_retain_interval,
                                     .keep_last = options.keep_last}));
  int64_t bytes = 0;
  for (const auto& [name, file] : manifest.content.files) bytes += file.bytes;
  return absl::StrCat(bytes, "\n", absl::StrJoin(committed.notes, "\n"));
}

// Every rank has read the same manifest: a number for each of its tensors, how many ranks ask.
absl::StatusOr<std::vector<std::string>> TensorsThatNobodyReads(
    const Manifest& manifest, const std::vector<NamedTensor>& into, at::Device device,
    Communicator& world) {
  std::set<std::string> mine;
  for (const NamedTensor& tensor : into) mine.insert(tensor.name);
  std::vector<int64_t> asks;
  for (const auto& [name, saved] : manifest.content.tensors) asks.push_back(mine.contains(name));
  at::Tensor readers = at::tensor(asks, at::kLong).to(device);
  RETURN_IF_ERROR(
      Annotate(world.AllReduce(readers, ReduceOp::kSum)->Wait(), "tensors of a checkpoint"));
  readers = readers.cpu();
  const int64_t* count = readers.const_data_ptr<int64_t>();
  std::vector<std::string> unread;
  for (const auto& [name, saved] : manifest.content.tensors) {
    if (*count++ == 0) unread.push_back(name);
  }
  return unread;
}

}  // namespace

absl::StatusOr<SavedCheckpoint> SaveCheckpoint(const SaveOptions& options,
                                               const CheckpointState& state, Communicator& world) {
  FileOps& files = options.files != nullptr ? *options.files : FileOps::Real();
  const std::string aside =
      absl::StrCat(options.root, "/", AsideFolderName(state.iteration, options.epoch));
  absl::StatusOr<std::vector<std::string>> parts =
      ExchangeOutcomes(WriteMyShard(files, aside, world.rank(), state), options.comm_device, world);
  absl::StatusOr<std::string> outcome = std::string();
  if (world.rank() == 0) {
    outcome = parts.ok() ? Commit(files, options, state.iteration, *parts)
                         : absl::StatusOr<std::string>(parts.status());
    // Frees the space (the disk may be full). Nobody writes there: all are in the exchange below.
    if (!outcome.ok()) (void)files.RemoveAll(aside);
  }
  // Every rank takes part, also when it knows the error already: a retry must not begin to write
  // while rank 0 still deletes.
  absl::StatusOr<std::vector<std::string>> answers =
      ExchangeOutcomes(outcome, options.comm_device, world);
  if (!parts.ok()) return parts.status();
  RETURN_IF_ERROR(answers.status());
  SavedCheckpoint saved{.path =
                            absl::StrCat(options.root, "/", CheckpointFolderName(state.iteration))};
  std::vector<std::string> lines = absl::StrSplit((*answers)[0], '\n', absl::SkipEmpty());
  if (!absl::SimpleAtoi(lines.front(), &saved.bytes)) return absl::InternalError("bad answer");
  saved.notes.assign(lines.begin() + 1, lines.end());
  return saved;
}

absl::StatusOr<std::string> LoadedCheckpoint::RankJson(int64_t rank) const {
  if (rank < 0 || rank >= world_size) {
    return absl::OutOfRangeError(
        absl::StrCat("rank ", rank, " of a checkpoint of ", world_size, " ranks"));
  }
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(path));
  return ShardReader(path, manifest).ReadState(RankStateName(rank));
}

absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const LoadOptions& options,
                                                std::vector<NamedTensor>& into,
                                                Communicator& world) {
  // Rank 0 chooses, so that all read the same one even while another job saves or deletes.
  absl::StatusOr<std::string> choice = std::string();
  if (world.rank() == 0) {
    const auto found = FindCheckpoint(options.root, options.ckpt_step);
    choice = found.ok() ? absl::StatusOr<std::string>(
                              absl::StrCat(found->path, "\n", absl::StrJoin(found->notes, "\n")))
                        : absl::StatusOr<std::string>(found.status());
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> choices,
                   ExchangeOutcomes(choice, options.comm_device, world));
  const std::vector<std::string> lines = absl::StrSplit(choices[0], '\n', absl::SkipEmpty());
  LoadedCheckpoint loaded{.path = lines.front()};
  loaded.notes.assign(lines.begin() + 1, lines.end());

  Manifest manifest;
  const auto read = [&]() -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(manifest, ReadManifest(loaded.path));
    loaded.iteration = manifest.iteration;
    loaded.epoch = manifest.epoch;
    loaded.world_size = manifest.world_size;
    ShardReader reader(loaded.path, manifest);
    ASSIGN_OR_RETURN(loaded.common_json, reader.ReadState(kCommonStateName));
    for (const NamedTensor& tensor : into) RETURN_IF_ERROR(reader.Fill(tensor));
    return std::string();
  };
  const auto outcomes = ExchangeOutcomes(read(), options.comm_device, world);
  RETURN_IF_ERROR(outcomes.status());
  if (options.list_unread) {
    ASSIGN_OR_RETURN(loaded.unread,
                     TensorsThatNobodyReads(manifest, into, options.comm_device, world));
  }
  return loaded;
}

}  // namespace muster
