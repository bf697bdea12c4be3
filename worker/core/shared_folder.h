// Is checkpoint.save the same folder on every node of a job? Found out before the first step: rank
// 0's agent writes a mark into it and tells the others through the rendezvous (one key), every
// other agent looks for that mark in its own folder (one look-up of the key). A job on one agent
// asks nothing. Pure: what to do and what to say; worker/agent/shared_folder_check.h does it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/core/agent_messages.h"

namespace muster {

enum class FolderRole { kNone, kWriter, kReader };
// Of the agent that got this order. Only the first attempt asks: later ones run where an earlier
// one has saved, or on nodes that replace some of it.
FolderRole FolderRoleOf(const LaunchOrder& launch, const std::optional<std::string>& save_folder);

// Of the mark in checkpoint.save; hidden, and never that of another job or attempt.
std::string MarkFileName(absl::string_view job_id, int64_t epoch);
inline constexpr char kMarkKey[] = "agents/checkpoint.save";

struct FolderMark {
  std::string node;   // of rank 0's agent
  std::string nonce;  // what the file holds
};
// As the key's value, in hex.
std::string EncodeMark(const FolderMark& mark);
std::optional<FolderMark> DecodeMark(absl::string_view hex);

// `found`: what the file holds now; nullopt: it is not there, or can't be read. A network file
// system may show it late, so a reader looks again until `limit` has passed.
enum class MarkDecision { kGood, kLookAgain, kNotShared };
MarkDecision DecideMark(const FolderMark& mark, const std::optional<std::string>& found,
                        absl::Duration elapsed, absl::Duration limit);

// FAILED_PRECONDITION: "checkpoint.save=/ckpt on node b does not hold what rank 0 (node a) wrote:
// ...". `why`: what the reader saw last.
absl::Status NotShared(absl::string_view save_folder, absl::string_view node,
                       const FolderMark& mark, absl::string_view why);

}  // namespace muster
