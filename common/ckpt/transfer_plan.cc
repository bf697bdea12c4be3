#include "common/ckpt/transfer_plan.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/ckpt/reshard.h"

namespace muster {
namespace {

struct Holder {
  int member = 0, offer = 0;
};
// Row-major indices in the whole tensor, from the first to the last element of a slice. A cheap no
// for most pairs of slices that have nothing in common.
struct Span {
  int64_t first = 0, last = -1;
};
// Offers of equal slices of one tensor: any of them will do.
struct EqualOffers {
  uint64_t hash = 0;
  const TransferSlice* slice = nullptr;
  std::vector<Holder> holders;  // by member
};
struct OwnOffer {
  int member = 0, offer = 0;
  const TransferSlice* slice = nullptr;
};
struct OfferedTensor {
  const TransferSlice* first = nullptr;
  std::vector<EqualOffers> kinds;
  std::vector<Span> spans;    // of the kinds
  std::vector<OwnOffer> all;  // by member, in its order
};

// Elements of a want that nobody has filled yet: ascending, disjoint.
struct Range {
  int64_t begin = 0, end = 0;
};

uint64_t HashOf(const SliceBox& box) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3;
    hash ^= hash >> 29;
  };
  for (const int64_t value : box.offset) add(value);
  for (const int64_t value : box.shape) add(value);
  add(box.flat_begin);
  add(box.flat_end);
  return hash;
}

bool SameBox(const SliceBox& a, const SliceBox& b) {
  return a.offset == b.offset && a.shape == b.shape && a.flat_begin == b.flat_begin &&
         a.flat_end == b.flat_end;
}

// Rows of another global dim 0 have the same indices.
Span SpanOf(const TransferSlice& slice) {
  const SliceBox& box = slice.box;
  if (box.flat_begin >= box.flat_end) return {};
  const auto index_of = [&](int64_t flat) {
    int64_t index = 0, stride = 1;
    for (size_t d = box.shape.size(); d-- > 0;) {
      index += (box.offset[d] + flat % box.shape[d]) * stride;
      flat /= box.shape[d];
      stride *= slice.global_shape[d];
    }
    return index;
  };
  return {index_of(box.flat_begin), index_of(box.flat_end - 1)};
}

// A global dim 0 may differ where padding is allowed.
bool SameShape(const std::vector<int64_t>& offered, const TransferSlice& want) {
  if (offered == want.global_shape) return true;
  return want.allow_dim0_padding && !offered.empty() &&
         offered.size() == want.global_shape.size() &&
         std::equal(offered.begin() + 1, offered.end(), want.global_shape.begin() + 1);
}

// Elements of the want, from its first one, that lie in rows which the offered tensor has.
int64_t ElementsToFill(const TransferSlice& want, const std::vector<int64_t>& offered) {
  const SliceBox& box = want.box;
  int64_t end = box.flat_end;
  if (want.allow_dim0_padding && !offered.empty()) {
    int64_t row = 1;
    for (size_t d = 1; d < box.shape.size(); ++d) row *= box.shape[d];
    end = std::min(end, std::max<int64_t>(0, offered[0] - box.offset[0]) * row);
  }
  return std::max<int64_t>(0, end - box.flat_begin);
}

class Planner {
 public:
  explicit Planner(size_t num_members) : load_(num_members, 0) {}

  absl::Status AddOffer(int member, int index, const TransferSlice& slice) {
    OfferedTensor& tensor = tensors_[slice.tensor];
    if (tensor.first == nullptr) tensor.first = &slice;
    if (tensor.first->global_shape != slice.global_shape) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor \"", slice.tensor, "\" is offered as (",
          absl::StrJoin(tensor.first->global_shape, ", "), ") and by member ", member, " as (",
          absl::StrJoin(slice.global_shape, ", "), "): they are not of one job"));
    }
    tensor.all.push_back({member, index, &slice});
    const uint64_t hash = HashOf(slice.box);
    for (EqualOffers& kind : tensor.kinds) {
      if (kind.hash != hash || !SameBox(kind.slice->box, slice.box) ||
          kind.slice->dtype != slice.dtype) {
        continue;
      }
      // A member's later offer of the same slice adds nothing.
      if (kind.holders.back().member != member) kind.holders.push_back({member, index});
      return absl::OkStatus();
    }
    tensor.kinds.push_back({.hash = hash, .slice = &slice, .holders = {{member, index}}});
    tensor.spans.push_back(SpanOf(slice));
    return absl::OkStatus();
  }

  absl::Status Fill(int member, int index, const TransferSlice& want) {
    const auto found = tensors_.find(want.tensor);
    if (want.box.flat_begin >= want.box.flat_end) return absl::OkStatus();
    if (found == tensors_.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor \"", want.tensor, "\", which member ", member, " wants, is held by no member"));
    }
    const OfferedTensor& tensor = found->second;
    if (!SameShape(tensor.first->global_shape, want)) {
      return absl::FailedPreconditionError(
          absl::StrCat("tensor \"", want.tensor, "\" is held as (",
                       absl::StrJoin(tensor.first->global_shape, ", "), "), but member ", member,
                       " wants it as (", absl::StrJoin(want.global_shape, ", "), ")"));
    }
    open_.clear();
    const int64_t elements = ElementsToFill(want, tensor.first->global_shape);
    if (elements > 0) open_.push_back({0, elements});
    const size_t first_run = runs_.size();
    to_ = member;
    want_ = index;
    const auto own = std::lower_bound(tensor.all.begin(), tensor.all.end(), member,
                                      [](const OwnOffer& a, int m) { return a.member < m; });
    for (auto it = own; it != tensor.all.end() && it->member == member; ++it)
      TakeFrom(*it->slice, {member, it->offer}, want);
    const Span wanted = SpanOf(want);
    for (size_t k = 0; k < tensor.kinds.size() && !open_.empty(); ++k) {
      if (tensor.spans[k].first > wanted.last || wanted.first > tensor.spans[k].last) continue;
      const EqualOffers& kind = tensor.kinds[k];
      const Holder chosen = *std::min_element(
          kind.holders.begin(), kind.holders.end(),
          [this](Holder a, Holder b) { return load_[a.member] < load_[b.member]; });
      TakeFrom(*kind.slice, chosen, want);
    }
    std::sort(runs_.begin() + static_cast<int64_t>(first_run), runs_.end(),
              [](const TransferRun& a, const TransferRun& b) { return a.target < b.target; });
    if (open_.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "tensor \"", want.tensor, "\": elements ", open_[0].begin, " to ", open_[0].end, " of the ",
        elements, " that member ", member, " wants are held by no member"));
  }

  std::vector<TransferRun> Take() { return std::move(runs_); }

 private:
  // Moves out of open_ what this offer holds of it.
  void TakeFrom(const TransferSlice& offer, Holder holder, const TransferSlice& want) {
    if (open_.empty()) return;
    still_open_.clear();
    size_t next = 0;  // of open_; runs come in ascending order of their targets
    int64_t taken = 0;
    ForEachCommonRun(offer.box, want.box, [&](int64_t source, int64_t target, int64_t count) {
      const int64_t end = target + count;
      while (next < open_.size() && open_[next].end <= target) still_open_.push_back(open_[next++]);
      while (next < open_.size() && open_[next].begin < end) {
        Range& range = open_[next];
        if (range.begin < target) still_open_.push_back({range.begin, target});
        const int64_t begin = std::max(range.begin, target);
        const int64_t stop = std::min(range.end, end);
        Append({.from = holder.member,
                .offer = holder.offer,
                .to = to_,
                .want = want_,
                .source = source + begin - target,
                .target = begin,
                .count = stop - begin});
        taken += stop - begin;
        if (range.end > end) {
          range.begin = end;
          break;
        }
        ++next;
      }
    });
    for (; next < open_.size(); ++next) still_open_.push_back(open_[next]);
    std::swap(open_, still_open_);
    if (holder.member != to_) load_[holder.member] += taken * DTypeSize(offer.dtype);
  }

  void Append(const TransferRun& run) {
    if (!runs_.empty()) {
      TransferRun& last = runs_.back();
      if (last.to == run.to && last.want == run.want && last.from == run.from &&
          last.offer == run.offer && last.source + last.count == run.source &&
          last.target + last.count == run.target) {
        last.count += run.count;
        return;
      }
    }
    runs_.push_back(run);
  }

  std::unordered_map<std::string, OfferedTensor> tensors_;
  std::vector<int64_t> load_;  // bytes that each member gives to others
  std::vector<TransferRun> runs_;
  // Of the want that is being filled.
  int to_ = 0, want_ = 0;
  std::vector<Range> open_, still_open_;
};

}  // namespace

absl::StatusOr<std::vector<TransferRun>> PlanTransfer(
    const std::vector<std::vector<TransferSlice>>& offers,
    const std::vector<std::vector<TransferSlice>>& wants) {
  Planner planner(std::max(offers.size(), wants.size()));
  for (size_t m = 0; m < offers.size(); ++m) {
    for (size_t i = 0; i < offers[m].size(); ++i)
      RETURN_IF_ERROR(planner.AddOffer(static_cast<int>(m), static_cast<int>(i), offers[m][i]));
  }
  for (size_t m = 0; m < wants.size(); ++m) {
    for (size_t i = 0; i < wants[m].size(); ++i)
      RETURN_IF_ERROR(planner.Fill(static_cast<int>(m), static_cast<int>(i), wants[m][i]));
  }
  return planner.Take();
}

}  // namespace muster
