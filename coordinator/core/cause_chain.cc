#include "coordinator/core/cause_chain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr size_t kMaxLater = 8;  // each has the last lines of a trainer

}  // namespace

void CauseChain::Begin(FailureCause cause, absl::Time now) {
  std::vector<FailureCause> chain = std::exchange(later_, {});
  if (first_.has_value()) chain.insert(chain.begin(), *std::move(first_));
  std::erase_if(chain, [&](const FailureCause& older) { return older.time + window_ <= now; });
  if (chain.empty()) {
    first_ = std::move(cause);
    return;
  }
  first_ = std::move(chain.front());
  later_.assign(std::make_move_iterator(chain.begin() + 1), std::make_move_iterator(chain.end()));
  if (later_.size() == kMaxLater) later_.pop_back();
  later_.push_back(std::move(cause));
}

bool CauseChain::Improve(const FailureCause& cause) {
  if (!Newest().symptom || cause.symptom) return false;
  const int restarts = Newest().restarts;
  Newest() = cause;
  Newest().restarts = restarts;
  return true;
}

void CauseChain::Settle() { Newest().symptom = false; }

const FailureCause& CauseChain::newest() const { return later_.empty() ? *first_ : later_.back(); }

std::string CauseChain::Text(int restarts) const {
  if (later_.empty()) return first_->text;
  const int followed = std::max(1, restarts - first_->restarts);
  return absl::StrCat(first_->text, "; ", followed,
                      followed == 1 ? " attempt followed, which failed: "
                                    : " attempts followed, the last of which failed: ",
                      newest().text);
}

void CauseChain::Restore(FailureCause first, std::vector<FailureCause> later) {
  first_ = std::move(first);
  later_ = std::move(later);
}

}  // namespace muster
