#include "worker/optim/update_rule.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {

template <class T>
PieceView<T>::PieceView(const MainParam& param, int64_t begin, int64_t count)
    : param_(param),
      begin_(begin),
      count_(count),
      main_(param.main.mutable_data_ptr<T>() + begin),
      grad_(converted_) {
  const at::Tensor& grad = param.grad();
  const at::ScalarType dtype = grad.scalar_type();
  if (dtype == param.main.scalar_type()) {
    grad_ = grad.const_data_ptr<T>() + begin;
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (dtype == at::kBFloat16) {
      kernels::Convert(grad.const_data_ptr<at::BFloat16>() + begin, converted_, count);
    } else {
      kernels::Convert(grad.const_data_ptr<at::Half>() + begin, converted_, count);
    }
  } else {
    kernels::Convert(grad.const_data_ptr<float>() + begin, converted_, count);
  }
}

template <class T>
T* PieceView<T>::state(int i) const {
  return param_.states[i].template mutable_data_ptr<T>() + begin_;
}

template <class T>
void PieceView<T>::StoreModel() const {
  if (!param_.is_copy) return;
  if constexpr (std::is_same_v<T, float>) {
    const at::Tensor& model = param_.model();
    if (model.scalar_type() == at::kBFloat16) {
      kernels::Convert(main_, model.mutable_data_ptr<at::BFloat16>() + begin_, count_);
    } else {
      kernels::Convert(main_, model.mutable_data_ptr<at::Half>() + begin_, count_);
    }
  }
}

template class PieceView<float>;
template class PieceView<double>;

}  // namespace muster
