#include "common/control/directive_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {

DirectiveLog::DirectiveLog(int64_t applied_through)
    : applied_through_(applied_through), gap_free_through_(applied_through) {
  MUSTER_CHECK(applied_through >= 0);
}

absl::Status DirectiveLog::Receive(const Directive& directive) {
  if (directive.number < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("directive.number=", directive.number, " must be at least 1"));
  }
  if (directive.number <= applied_through_) return absl::OkStatus();
  auto [it, inserted] = held_.emplace(directive.number, directive);
  if (!inserted && it->second != directive) {
    return absl::InvalidArgumentError(
        absl::StrCat("directive ", directive.number, " arrived twice with different contents (\"",
                     it->second.reason, "\", then \"", directive.reason, "\"); the first is kept"));
  }
  while (held_.contains(gap_free_through_ + 1)) ++gap_free_through_;
  return absl::OkStatus();
}

int64_t DirectiveLog::num_waiting_for_gap() const {
  return static_cast<int64_t>(held_.size()) - (gap_free_through_ - applied_through_);
}

std::vector<Directive> DirectiveLog::held() const {
  std::vector<Directive> all;
  for (const auto& [number, directive] : held_) all.push_back(directive);
  return all;
}

std::vector<Directive> DirectiveLog::Apply(int64_t through) {
  MUSTER_CHECK_MSG(through <= gap_free_through_, "agreed on a directive that is not here");
  std::vector<Directive> due;
  while (applied_through_ < through) {
    auto node = held_.extract(applied_through_ + 1);
    due.push_back(std::move(node.mapped()));
    ++applied_through_;
  }
  return due;
}

void DirectiveLog::TakeBack(const std::vector<Directive>& directives) {
  for (auto it = directives.rbegin(); it != directives.rend(); ++it) {
    MUSTER_CHECK(it->number == applied_through_);
    held_.emplace(it->number, *it);
    --applied_through_;
  }
}

}  // namespace muster
