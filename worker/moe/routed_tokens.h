// What a router decides for this rank's tokens.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster {

struct RoutedTokens {
  // (T, E): the weight of each chosen expert, 0 elsewhere; with gradient, in the logits' type.
  at::Tensor probs;
  at::Tensor map;  // (T, E) bool: which experts a token goes to, after dropping and padding
};

}  // namespace muster
