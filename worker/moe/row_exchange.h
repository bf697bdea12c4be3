// Rows of several tensors exchanged over one group, together, with other work while they travel:
//
//   Exchange exchange({rows, probs}, there, back);  // posts
//   ...                                             // recorded or not
//   TensorList arrived = exchange.Finish();         // waits
//
// Differentiable. Autograd sees two operations, so that the backward pass posts the gradients'
// exchange where Finish was and waits for it where the constructor was: what was recorded between
// runs meanwhile. Throws CollectiveError.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/comm/communicator.h"
#include "worker/ops/autograd_op.h"

namespace muster {

// Tensors under way; call it once.
using Arrival = std::function<TensorList()>;
// Posts an exchange of the tensors, dense.
using Departure = std::function<Arrival(const TensorList& tensors)>;

class Exchange {
 public:
  // `back` takes the gradients of what `there` gives, to those of the tensors. `also`: the
  // exchange's backward runs where one of these needs a gradient, even if no tensor depends on it.
  Exchange(const TensorList& tensors, const Departure& there, Departure back,
           const TensorList& also = {});
  TensorList Finish();

 private:
  struct Return;  // the gradients under way
  Departure back_;
  std::shared_ptr<Return> return_;
  Arrival arrival_;
  at::Tensor ticket_;  // empty; stands for the journey in autograd's graph
};

// Splits count rows of dim 0.
Departure AllToAllRows(Communicator& group, std::vector<int64_t> output_splits,
                       std::vector<int64_t> input_splits);
// Each member's rows, in the order of ranks; `rows` by member.
Departure GatherRows(Communicator& group, std::vector<int64_t> rows);
// The other way: this member's part of the sum over the members, which are added in the order of
// ranks. The sum is taken in `dtype`, if given, where that is wider than the rows' type.
Departure ReduceScatterRows(Communicator& group, std::vector<int64_t> rows,
                            std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace muster
