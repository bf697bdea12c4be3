#include "recovery_explorer.h"

#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using State = RecoveryModel::State;
using Step = RecoveryModel::Step;

class Explorer {
 public:
  explicit Explorer(const ModelOptions& options) : model_(options) {}

  Exploration Run() {
    const State begin = model_.Begin();
    numbers_.emplace(RecoveryModel::Hash(begin), 0);
    ways_.push_back({-1, "", 0});
    waiting_.emplace_back(0, begin);
    while (!waiting_.empty() && result_.broken.empty()) {
      const auto [number, state] = std::move(waiting_.front());
      waiting_.pop_front();
      Visit(number, state);
    }
    result_.num_states = static_cast<int64_t>(ways_.size());
    return result_;
  }

 private:
  // How a state was reached first.
  struct Way {
    int32_t from;
    const char* action;
    int8_t where;
  };

  void Visit(int32_t number, const State& state) {
    if (RecoveryModel::IsEnd(state)) {
      ++result_.num_ends;
      return;
    }
    bool goes_on = false;
    const int64_t progress = RecoveryModel::Progress(state);
    model_.ForEachStep(state, [&](const Step& step) {
      if (!result_.broken.empty()) return;
      ++result_.num_transitions;
      goes_on |= !step.failure;
      const auto [it, is_new] =
          numbers_.emplace(RecoveryModel::Hash(step.next), static_cast<int32_t>(ways_.size()));
      if (is_new) ways_.push_back({number, step.action, static_cast<int8_t>(step.where)});
      if (step.broken.has_value()) return Break(it->second, *step.broken, step.next);
      if (!step.failure && RecoveryModel::Progress(step.next) <= progress)
        return Break(it->second, "a transition without progress", step.next);
      if (!is_new) return;
      if (const auto broken = model_.Check(step.next); broken.has_value())
        return Break(it->second, *broken, step.next);
      waiting_.emplace_back(it->second, step.next);
    });
    if (!goes_on) Break(number, "a dead end", state);
  }

  void Break(int32_t number, const std::string& rule, const State& state) {
    std::string way;
    for (; number > 0; number = ways_[number].from) {
      way = absl::StrCat(" ", ways_[number].action, "(", int{ways_[number].where}, ")", way);
    }
    if (result_.broken.empty())
      result_.broken = absl::StrCat(rule, "\n  after", way, "\n  ", model_.ToString(state));
  }

  RecoveryModel model_;
  // By hash: of ten million states two share one of 64 bits with a chance of 3 in a million.
  std::unordered_map<uint64_t, int32_t> numbers_;
  std::vector<Way> ways_;
  std::deque<std::pair<int32_t, State>> waiting_;
  Exploration result_;
};

}  // namespace

Exploration Explore(const ModelOptions& options) { return Explorer(options).Run(); }

}  // namespace muster
