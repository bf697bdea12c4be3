// check_collectives: the members compare what each is about to start before any starts it.
#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/comm/gloo_running.h"

namespace muster {

// One collective after the other, so that checks and operations interleave alike on all members.
void GlooGroup::CheckAndIssue() {
  for (;;) {
    RunningPtr running;
    {
      MutexLock lock(&issue_mu_);
      if (unchecked_.empty() || retired_) {
        checking_ = false;
        return;
      }
      running = std::move(unchecked_.front());
      unchecked_.pop_front();
    }
    if (absl::Status status = CheckAgreement(*running); !status.ok()) {
      Fail(status);
      continue;
    }
    MutexLock lock(&issue_mu_);
    if (backend_ != nullptr) IssueLocked(running);
  }
}

// Gathers 64 bytes of signature and the all-to-all's counts from all members.
absl::Status GlooGroup::CheckAgreement(const Running& running) {
  constexpr int64_t kText = 64;
  const int64_t num_members = size(), bytes = kText + 2 * 8 * num_members;
  const Operation& operation = running.operation;
  at::Tensor mine = at::zeros({bytes}, at::kByte), all = at::empty({num_members, bytes}, at::kByte);
  auto* const text = reinterpret_cast<char*>(mine.data_ptr());
  operation.signature.copy(text, kText - 1);
  for (size_t i = 0; i < operation.sent.size(); ++i) {
    std::memcpy(text + kText + 8 * i, &operation.sent[i], 8);
    std::memcpy(text + kText + 8 * (num_members + i), &operation.received[i], 8);
  }
  auto check = std::make_shared<Running>();
  check->sequence = running.sequence;
  check->limit = running.limit;
  check->deadline = running.deadline;
  check->internal = true;
  check->operation.issue = [mine, all](c10d::Backend& gloo) -> Works {
    at::Tensor out = all.view(-1), in = mine;
    return {gloo._allgather_base(out, in)};
  };
  {
    MutexLock lock(&issue_mu_);
    if (backend_ == nullptr) return state_->failure();
    IssueLocked(check);
  }
  RETURN_IF_ERROR(Wait(check));
  const auto* const data = static_cast<const char*>(all.data_ptr());
  const auto count = [&](int64_t member, int64_t index) {
    int64_t value = 0;
    std::memcpy(&value, data + member * bytes + kText + 8 * index, 8);
    return value;
  };
  for (int a = 0; a < size(); ++a) {
    const std::string first(data), theirs(data + a * bytes);
    if (theirs != first) {
      return Named(running, absl::StatusCode::kInvalidArgument,
                   absl::StrCat("collective mismatch: rank ", ranks_[a], " started ", theirs,
                                " where rank ", ranks_[0], " started ", first,
                                "; all members must issue the same operations in the same order"));
    }
    for (int b = 0; b < size(); ++b) {
      const int64_t sent = count(a, b), expected = count(b, num_members + a);
      if (sent == expected) continue;
      return Named(running, absl::StatusCode::kInvalidArgument,
                   absl::StrCat("rank ", ranks_[a], " sends ", sent, " bytes to rank ", ranks_[b],
                                ", which expects ", expected));
    }
  }
  return absl::OkStatus();
}

}  // namespace muster
