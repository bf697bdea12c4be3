#include "worker/moe/row_exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include "common/base/check.h"

namespace muster {
namespace {

TensorList Dense(const TensorList& tensors) {
  TensorList dense;
  for (const at::Tensor& tensor : tensors) dense.push_back(tensor.detach().contiguous());
  return dense;
}

at::Tensor EmptyRows(int64_t rows, const at::Tensor& like) {
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, like.options());
}

int64_t Sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

bool AllEqual(const std::vector<int64_t>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

Arrival After(std::vector<WorkPtr> works, TensorList tensors) {
  return [works = std::move(works), tensors = std::move(tensors)] {
    for (const WorkPtr& work : works) WaitOrThrow(work);
    return tensors;
  };
}

// Parts of different sizes go straight to everybody, with no copy of them.
Arrival GatherUnevenRows(Communicator& group, const std::vector<int64_t>& rows,
                         const TensorList& tensors) {
  std::vector<P2POp> batch;
  TensorList gathered;
  for (const at::Tensor& own : tensors) {
    const at::Tensor whole = EmptyRows(Sum(rows), own);
    int64_t begin = 0;
    for (int member = 0; member < group.size(); ++member) {
      const at::Tensor part = whole.narrow(0, begin, rows[member]);
      begin += rows[member];
      if (member == group.rank()) {
        part.copy_(own);
        continue;
      }
      if (own.size(0) > 0) batch.push_back({P2POp::Kind::kSend, own, member});
      if (part.size(0) > 0) batch.push_back({P2POp::Kind::kRecv, part, member});
    }
    gathered.push_back(whole);
  }
  return After({group.SendRecv(std::move(batch))}, std::move(gathered));
}

// Every member's copies of this member's part arrive one behind the other, and are added.
Arrival ReduceScatterUnevenRows(Communicator& group, const std::vector<int64_t>& rows,
                                const TensorList& tensors) {
  const int64_t own = rows[group.rank()], size = group.size();
  std::vector<WorkPtr> works;
  TensorList copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(EmptyRows(own * size, tensor));
    works.push_back(group.AllToAll(copies.back(), tensor, std::vector<int64_t>(size, own), rows));
  }
  return [arrival = After(std::move(works), std::move(copies)), own, size] {
    TensorList sums;
    for (const at::Tensor& parts : arrival()) {
      sums.push_back(parts.narrow(0, 0, own));
      for (int64_t member = 1; member < size; ++member) {
        sums.back().add_(parts.narrow(0, member * own, own));
      }
    }
    return sums;
  };
}

Arrival ReduceScatterEvenRows(Communicator& group, int64_t rows, const TensorList& tensors) {
  std::vector<WorkPtr> works;
  TensorList parts;
  for (const at::Tensor& tensor : tensors) {
    parts.push_back(EmptyRows(rows, tensor));
    works.push_back(group.ReduceScatter(parts.back(), tensor, ReduceOp::kSum));
  }
  return After(std::move(works), std::move(parts));
}

}  // namespace

struct Exchange::Return {
  Arrival arrival;
};

Exchange::Exchange(const TensorList& tensors, const Departure& there, Departure back,
                   const TensorList& also)
    : back_(std::move(back)), return_(std::make_shared<Return>()) {
  {
    OpForward forward;
    arrival_ = there(Dense(tensors));
    ticket_ = at::empty({0}, tensors[0].options());
  }
  TensorList inputs = tensors;
  inputs.insert(inputs.end(), also.begin(), also.end());
  ticket_ = RecordOp(
      ticket_, inputs,
      [returning = return_, num_inputs = inputs.size()](const TensorList&, const NeedsGrad&) {
        TensorList grads = std::exchange(returning->arrival, nullptr)();
        grads.resize(num_inputs);
        return grads;
      });
}

TensorList Exchange::Finish() {
  TensorList arrived;
  {
    OpForward forward;
    arrived = std::exchange(arrival_, nullptr)();
  }
  struct Shape {
    std::vector<int64_t> sizes;
    at::TensorOptions options;
  };
  std::vector<Shape> shapes;
  for (const at::Tensor& tensor : arrived) {
    shapes.push_back({tensor.sizes().vec(), tensor.options()});
  }
  return RecordOp(std::move(arrived), {ticket_},
                  [back = std::move(back_), returning = return_, shapes = std::move(shapes)](
                      const TensorList& grads, const NeedsGrad&) {
                    TensorList sent = grads;
                    for (size_t i = 0; i < sent.size(); ++i) {  // nobody sent one: they are zero
                      if (!sent[i].defined())
                        sent[i] = at::zeros(shapes[i].sizes, shapes[i].options);
                    }
                    returning->arrival = back(Dense(sent));
                    return TensorList{at::empty({0}, shapes[0].options)};
                  });
}

Departure AllToAllRows(Communicator& group, std::vector<int64_t> output_splits,
                       std::vector<int64_t> input_splits) {
  return [&group, output_splits = std::move(output_splits),
          input_splits = std::move(input_splits)](const TensorList& tensors) {
    std::vector<WorkPtr> works;
    TensorList arrived;
    for (const at::Tensor& tensor : tensors) {
      arrived.push_back(EmptyRows(Sum(output_splits), tensor));
      works.push_back(group.AllToAll(arrived.back(), tensor, output_splits, input_splits));
    }
    return After(std::move(works), std::move(arrived));
  };
}

Departure GatherRows(Communicator& group, std::vector<int64_t> rows) {
  return [&group, rows = std::move(rows)](const TensorList& tensors) {
    if (!AllEqual(rows)) return GatherUnevenRows(group, rows, tensors);
    std::vector<WorkPtr> works;
    TensorList gathered;
    for (const at::Tensor& tensor : tensors) {
      gathered.push_back(EmptyRows(Sum(rows), tensor));
      works.push_back(group.AllGather(gathered.back(), tensor));
    }
    return After(std::move(works), std::move(gathered));
  };
}

Departure ReduceScatterRows(Communicator& group, std::vector<int64_t> rows,
                            std::optional<at::ScalarType> dtype) {
  return [&group, rows = std::move(rows), dtype](const TensorList& tensors) -> Arrival {
    TensorList wide;
    std::vector<at::ScalarType> types;
    for (const at::Tensor& tensor : tensors) {
      MUSTER_CHECK(tensor.size(0) == Sum(rows));
      types.push_back(tensor.scalar_type());
      const at::ScalarType type = tensor.scalar_type();
      wide.push_back(dtype.has_value() ? tensor.to(c10::promoteTypes(type, *dtype)) : tensor);
    }
    Arrival arrival = AllEqual(rows) ? ReduceScatterEvenRows(group, rows[0], wide)
                                     : ReduceScatterUnevenRows(group, rows, wide);
    return [arrival = std::move(arrival), types = std::move(types)] {
      TensorList sums = arrival();
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i].to(types[i]);
      return sums;
    };
  };
}

}  // namespace muster
