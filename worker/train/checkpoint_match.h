// How the job that saved a checkpoint compares with the one that loads it: what must be equal, and
// what is worth a line to people. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace muster {

// FAILED_PRECONDITION names the field in which the models differ.
absl::Status CheckSameModel(const JobSpec& saved, const JobSpec& ours);
// Does rank r compute the same in both?
bool SameRanks(const JobSpec& a, const JobSpec& b);
// The softmax is over the padding too, so a longer one raises the loss at once.
std::optional<std::string> NoteOnVocabulary(const JobSpec& saved, const ResolvedSpec& ours);
// Weights that this model has no place for. Optimizer states may be left out on purpose.
std::optional<std::string> NoteOnUnread(const std::vector<std::string>& unread);

}  // namespace muster
